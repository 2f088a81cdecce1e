"""Builds a Horovod wheel from its source archive, for the torch of this Python.

Runs on the head with the interpreter of the cluster's environment. Horovod's
last release pins an older C++ standard than current torch headers need, and
knows nothing of CUDA from Python wheels; both are dealt with here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

# file, what it says, what it shall say; each occurs exactly once.
PATCHES = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD {standard})"),
    (
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD {standard})",
    ),
    # Without this the tensors of the default process set ignore the interface
    # asked for, and travel over the one that the host's name leads to.
    (
        "horovod/common/gloo/gloo_context.cc",
        "  assert(global_context.IsEnabled());\n",
        "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n",
    ),
    # Left empty, the list of ranks has none that could be missing: with Gloo, no rank that others
    # wait for was ever reported, and HOROVOD_STALL_SHUTDOWN_TIME_SECONDS ended nothing.
    (
        "horovod/common/gloo/gloo_controller.cc",
        "  global_ranks_.reserve(size_);\n",
        "  global_ranks_.resize(size_);\n",
    ),
    # A rank that waits for a collective looks again and again whether it is done, and takes a
    # core from those who work at it. Where cores are shared it sleeps between two looks; the
    # role says for how long (HOROVOD_WAIT_US). Without that it waits as the release does.
    (
        "horovod/torch/mpi_ops_v2.cc",
        "std::this_thread::yield();",
        """static const char* asked = std::getenv("HOROVOD_WAIT_US");
      static const long wait_us = asked ? std::strtol(asked, nullptr, 10) : 0;
      if (wait_us > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
      } else {
        std::this_thread::yield();
      }""",
    ),
    # GCC 14 also reads templates that nobody uses, and this one assigns to a constant.
    (
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "  const size_type count_;\n",
        "  size_type count_;\n",
    ),
    # The name without a number is for linkers, and not every driver's package brings it:
    # without it no collective would start on a GPU.
    (
        "horovod/torch/cuda_util.cc",
        'dlopen("libcuda.so", RTLD_LAZY)',
        'dlopen("libcuda.so.1", RTLD_LAZY)',
    ),
    # Most of a compiler's time goes into headers, which several files can read at once: two fifths
    # are saved. Horovod's common files need some each, and torch's together.
    (
        "horovod/torch/CMakeLists.txt",
        'PROPERTIES OUTPUT_NAME "mpi_lib_v2")',
        'PROPERTIES OUTPUT_NAME "mpi_lib_v2" UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)',
    ),
    (
        "third_party/gloo/gloo/CMakeLists.txt",
        "add_library(gloo ${GLOO_STATIC_OR_SHARED} ${GLOO_SRCS})\n",
        """add_library(gloo ${GLOO_STATIC_OR_SHARED} ${GLOO_SRCS})
set_target_properties(gloo PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
# It has a name of its own for what another file calls the same.
set_source_files_properties(
  ${CMAKE_CURRENT_SOURCE_DIR}/allreduce_local.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
""",
    ),
    # Debug symbols double the time of a build and its size.
    ("setup.py", "else 'RelWithDebInfo'", "else 'Release'"),
    # The nodes know each other's host keys; any other key is an impostor's. Role ssh_mesh writes
    # the settings of these logins.
    (
        "horovod/runner/util/remote.py",
        "-o StrictHostKeyChecking=no",
        "-F /etc/gpubed/ssh_config -o BatchMode=yes -o StrictHostKeyChecking=yes",
    ),
    # A rank may print what is no text: a byte of it ended who hands output on, and with that the
    # run hung, once the pipe was full.
    (
        "horovod/runner/common/util/safe_shell_exec.py",
        "codecs.getincrementaldecoder('utf8')()",
        "codecs.getincrementaldecoder('utf8')(errors='replace')",
    ),
    # One node alone takes the interface that it is given, too: else only loopback would do.
    (
        "horovod/runner/driver/driver_service.py",
        "nics = get_local_interfaces(settings)",
        "nics = settings.nics or get_local_interfaces(settings)",
    ),
    # Where ranks find each other: on the network of jobs alone, and for those who can read
    # the run's secret, which is a file of mode 0600. Plain `horovodrun` names none.
    (
        "horovod/runner/http/http_server.py",
        "                addr, handler_cls, self._verbose))",
        "                (os.environ.get('GPUBED_ADDRESS', ''), addr[1]),\n"
        "                handler_cls, self._verbose))",
    ),
    (
        "horovod/runner/http/http_server.py",
        "class RendezvousHandler(KVStoreHandler):\n",
        """class RendezvousHandler(KVStoreHandler):
    def parse_request(self):
        if not super().parse_request():
            return False
        wanted, given = secret(), self.headers.get(HEADER, '')
        if wanted and not hmac.compare_digest(wanted.encode(), given.encode()):
            self.send_status_code(403)
            return False
        return True

""",
    ),
    (
        "horovod/runner/http/http_server.py",
        "import collections\nimport logging\n",
        "import collections\nimport hmac\nimport logging\nimport os\n",
    ),
    (
        "horovod/runner/http/http_server.py",
        "from horovod.runner.util.network import find_port\n",
        "from horovod.runner.http.http_client import HEADER, secret\n"
        "from horovod.runner.util.network import find_port\n",
    ),
    (
        "horovod/runner/http/http_client.py",
        "from horovod.runner.common.util import codec\n",
        """from horovod.runner.common.util import codec

HEADER = 'X-Horovod-Secret'


def secret():
    path = os.environ.get('HOROVOD_SECRET_FILE')
    return Path(path).read_text().strip() if path else ''
""",
    ),
    (
        "horovod/runner/http/http_client.py",
        "from urllib.error import HTTPError, URLError\n",
        "import os\nfrom pathlib import Path\nfrom urllib.error import HTTPError, URLError\n",
    ),
    (
        "horovod/runner/http/http_client.py",
        "        req = Request(url)\n",
        "        req = Request(url, headers={HEADER: secret()})\n",
    ),
    (
        "horovod/runner/http/http_client.py",
        "        req = Request(url, data=",
        "        req = Request(url, headers={HEADER: secret()}, data=",
    ),
    (
        "horovod/common/gloo/http_store.cc",
        "request.send(method, body);",
        "request.send(method, body, Secret());",
    ),
    (
        "horovod/common/gloo/http_store.cc",
        "// Perform http request to rendezvous server",
        """static std::vector<std::string> Secret() {
  const char* path = std::getenv("HOROVOD_SECRET_FILE");
  std::string secret;
  if (path == nullptr || !(std::ifstream(path) >> secret)) {
    return {};
  }
  return {"X-Horovod-Secret: " + secret};
}

// Perform http request to rendezvous server""",
    ),
    (
        "horovod/common/gloo/http_store.cc",
        "#include <cstring>\n#include <iostream>\n",
        "#include <cstdlib>\n#include <cstring>\n#include <fstream>\n#include <iostream>\n",
    ),
)
# A compiler run on torch's headers needs this much memory.
BYTES_PER_JOB = 2 << 30
# Where Debian and Ubuntu put the C++ compiler that their nvcc accepts.
DISTRIBUTION_CUDA = Path("/usr/lib/nvidia-cuda-toolkit/bin")


def patch(source: Path, standard: int) -> None:
    """Changes the source where it must be; refuses one that it does not know."""
    for name, old, new in PATCHES:
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(
                f"{name} has {old!r} {text.count(old)} times, expected once: not patched"
            )
        path.write_text(text.replace(old, new.replace("{standard}", str(standard))))


def build_jobs(cpus: int, memory: int) -> int:
    """Compilers that run at once: one per core, if the memory (bytes) allows."""
    return max(1, min(cpus, memory // BYTES_PER_JOB))


def base_environment(jobs: int) -> dict[str, str]:
    """What every build sets: torch only, with MPI and Gloo, on all cores."""
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "MAKEFLAGS": f"-j{jobs}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        # Gloo and others below third_party ask for policies that CMake 4 dropped.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        # From GCC 13 on, other headers no longer bring these along.
        "CXXFLAGS": "-include cstdint -include stdexcept -include string",
    }
    return environment


def feature_environment(mpi: bool, gloo: bool) -> dict[str, str]:
    """Asks for a feature, so that a build without it fails, or rules it out."""
    wanted = {"MPI": mpi, "GLOO": gloo}
    return {f"HOROVOD_WITH{'' if on else 'OUT'}_{name}": "1" for name, on in wanted.items()}


def linked(folder: Path, place: Path, *names: str) -> Path:
    """Makes a folder that has another's content, and the names that a linker looks for.

    Those are without a version, and wheels lack them. The packages themselves may belong to an
    image that many clusters share.
    """
    place.mkdir(parents=True)
    for entry in folder.iterdir():
        (place / entry.name).symlink_to(entry)
    for name in names:
        if not (place / name).exists():
            (place / name).symlink_to(sorted(folder.glob(f"{name}.*"))[-1])
    return place


def wheels_cuda(nvidia: Path, place: Path) -> dict[str, str]:
    """Points Horovod's build to the CUDA that came as wheels."""
    cuda = linked(nvidia / "cu13", place)
    (cuda / "lib").unlink()
    library = linked(nvidia / "cu13/lib", cuda / "lib", "libcudart.so")
    if not (cuda / "lib64").exists():
        (cuda / "lib64").symlink_to("lib")
    return {"CUDA_HOME": str(cuda), "LIBRARY_PATH": f"{library}:{library / 'stubs'}"}


def system_cuda(nvcc: Path) -> dict[str, str]:
    """Points Horovod's build to the CUDA of a system's compiler."""
    environment = {"CUDA_HOME": str(nvcc.parent.parent)}
    if DISTRIBUTION_CUDA.is_dir() and nvcc == Path("/usr/bin/nvcc"):
        environment |= {"CC": f"{DISTRIBUTION_CUDA}/gcc", "CXX": f"{DISTRIBUTION_CUDA}/g++"}
    return environment


def cuda_environment(architectures: list[str], nvcc: Path | None, scratch: Path) -> dict[str, str]:
    """Asks for NCCL, which always comes as a wheel; CUDA does so unless a compiler is named."""
    nvidia = Path(sysconfig.get_path("purelib")) / "nvidia"
    nccl = linked(nvidia / "nccl", scratch / "nccl")
    (nccl / "lib").unlink()
    linked(nvidia / "nccl/lib", nccl / "lib", "libnccl.so")
    environment = system_cuda(nvcc) if nvcc else wheels_cuda(nvidia, scratch / "cuda")
    return environment | {
        "CUDACXX": f"{environment['CUDA_HOME']}/bin/nvcc",
        "HOROVOD_CUDA_HOME": environment["CUDA_HOME"],
        "HOROVOD_NCCL_HOME": str(nccl),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(a.replace(".", "") for a in architectures),
    }


def last_lines(log: Path, count: int = 40) -> str:
    """What the compiler said last, without the traceback of setup.py after it."""
    said = log.read_text(errors="replace").split("Traceback (most recent call last)")[0]
    return "\n".join(said.splitlines()[-count:])


def build(source: Path, out: Path, environment: dict[str, str], log: Path) -> Path:
    """Runs Horovod's own build and returns the wheel."""
    if "CUDA_HOME" in environment:
        environment["PATH"] = f"{environment['CUDA_HOME']}/bin:{environment['PATH']}"
    command = [sys.executable, "setup.py", "--verbose", "bdist_wheel", "--dist-dir", str(out)]
    with log.open("w") as stream:
        done = subprocess.run(
            command,
            cwd=source,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{last_lines(log)}\n\nHorovod did not build; the whole log is in {log}")
    return next(out.glob("*.whl"))


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the wheel")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--cpus", type=int, required=True, help="those that this node may use")
    parser.add_argument("--memory", type=int, required=True, help="that it may use, in KiB")
    parser.add_argument("--cxx-standard", type=int, required=True)
    parser.add_argument("--mpi", action="store_true")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--nvcc", type=Path, help="the system's CUDA compiler")
    parser.add_argument("--architecture", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Unpacks, patches, builds, and moves the finished wheel to its place."""
    arguments = parse_arguments()
    jobs = build_jobs(arguments.cpus, 1024 * arguments.memory)
    environment = base_environment(jobs) | feature_environment(arguments.mpi, arguments.gloo)
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as scratch:
        if arguments.nccl:
            environment |= cuda_environment(
                arguments.architecture, arguments.nvcc, Path(scratch, "packages")
            )
        shutil.unpack_archive(arguments.sdist, scratch)
        source = next(Path(scratch).glob("horovod-*"))
        patch(source, arguments.cxx_standard)
        wheel = build(source, Path(scratch) / "dist", environment, arguments.log)
        # Only a whole wheel ever has its final name.
        arguments.out.mkdir(parents=True, exist_ok=True)
        partial = arguments.out / f".{wheel.name}.partial"
        shutil.copyfile(wheel, partial)
        partial.rename(arguments.out / wheel.name)


if __name__ == "__main__":
    main()
