"""What must be in place on this machine before the first cluster."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from gpubed.backends.local import addresses, build, census, daemon, environment, image, limits
from gpubed.backends.local.config import Runtime
from gpubed.backends.local.python_image import PythonImage, node_image
from gpubed.core import reading, record
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import format_bytes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan, plan
from gpubed.spec.sections import LEAST_MEMORY, NodeGroup
from gpubed.testbeds.base import Finding

_GB, _GIB = 10**9, 2**30
# Image, package cache, environment of the first cluster; a further one needs the last only.
_FIRST_DISK, _DISK = 12 * _GB, 8 * _GB
# Unpacked and committed, beside the wheels.
_PACKAGES = 12 * _GB
# Frames to a virtual machine, and packets that arrive at a shaped link, are redirected.
_REDIRECTING = ("NET_SCH_INGRESS", "NET_CLS_U32", "NET_ACT_MIRRED", "TUN")
_SHAPING = ("NET_SCH_HTB", "IFB", *_REDIRECTING)
_TUN, _KVM = Path("/dev/net/tun"), Path("/dev/kvm")


def findings(spec: ClusterSpec | None = None, paths: ClusterPaths | None = None) -> list[Finding]:
    """Return what was looked at; nothing that needs Docker when Docker does not do.

    Args:
        spec: What a cluster is to be; None to look at the machine alone.
        paths: The cluster's paths.
    """
    virtual = _is_virtual(spec)
    kernel = _kernel(_REDIRECTING if virtual else _SHAPING)
    try:
        info = daemon.look().info()
    except GpubedError as error:
        return [Finding("local.docker", False, error.message, error.hint), kernel]
    docker = _docker(info)
    if not docker.ok:
        return [docker, kernel]
    planned = plan(spec, addresses.surroundings(spec, paths)) if spec and paths else None
    room = memory(planned, paths) if planned and paths else _memory(1, "nodes")
    found = [docker, _image(spec), _disk(info, spec), room, _cgroup(info)]
    if virtual:
        found += _virtual()
    return [
        *found,
        kernel,
        _environment(),
        *(_of_cluster(planned, paths) if planned and paths else []),
    ]


def _of_cluster(plan: ClusterPlan, paths: ClusterPaths) -> Iterator[Finding]:
    yield from addresses.subnets(plan, paths)
    for warning in limits.warnings(plan.spec):
        yield Finding("local.isolation", True, warning)
    groups = plan.spec.nodes
    if pretended := sorted({group.simulate.model for group in groups if group.simulate}):
        message = f"nodes only pretend to have {', '.join(pretended)}: no GPU is tested"
        yield Finding("local.gpus.simulated", True, message)


def _is_virtual(spec: ClusterSpec | None) -> bool:
    return spec is not None and spec.backend.runtime == "vm"  # type: ignore[attr-defined]


def _virtual() -> Iterator[Finding]:
    """Look for what qemu needs of this machine; qemu itself is in the image."""
    tun, names = _TUN.exists(), environment.nameservers()
    yield _judged(
        "local.vm.tun", tun, f"{_TUN} is {'there' if tun else 'missing'}", "sudo modprobe tun"
    )
    yield _judged(
        "local.vm.nameserver",
        bool(names),
        f"machines ask {', '.join(names)}" if names else "this machine's resolver is its own only",
        "name a name server that is not on the loopback in /etc/resolv.conf",
    )
    kvm = "/dev/kvm is there; machines use it if their kernel starts on it"
    message = kvm if _KVM.exists() else "there is no /dev/kvm: machines are emulated, and slow"
    yield Finding("local.vm.kvm", True, message)


def _judged(kind: str, ok: bool, message: str, fix: str) -> Finding:
    return Finding(kind, ok, message, None if ok else fix)


def _docker(info: dict[str, Any]) -> Finding:
    kind, fix = "local.docker", "unset DOCKER_HOST, and use the Docker daemon of this machine"
    address = str(daemon.look().api.base_url)
    version, system = info["ServerVersion"], info["OperatingSystem"]
    if not address.startswith("http+docker"):
        return Finding(kind, False, f"the Docker daemon is on another machine ({address})", fix)
    if "Docker Desktop" in system or any(
        "rootless" in option for option in info["SecurityOptions"] or []
    ):
        what = "Docker Desktop" if "Docker Desktop" in system else "rootless Docker"
        message = f"{what} hides the nodes' addresses from this machine"
        return Finding(kind, False, message, "use Docker's ordinary daemon on Linux")
    return Finding(kind, True, f"Docker {version} answers")


def _images(spec: ClusterSpec | None) -> list[image.Recipe | PythonImage]:
    runtime: Runtime = "vm" if _is_virtual(spec) else "container"
    if spec is None:
        return [image.Recipe(NodeGroup.model_fields["image"].default, runtime)]
    asked = {(group.image, group.simulate is not None) for group in spec.nodes}
    systems = [image.Recipe(n, runtime, sim) for n, sim in sorted(asked) if n in image.RELEASES]
    software = spec.recipe if spec.configure else None
    return [node_image(system, software) for system in systems]


def _image(spec: ClusterSpec | None) -> Finding:
    kind = "local.image"
    for wanted in _images(spec):
        if image.exists(wanted.tag):
            continue
        system = wanted.below if isinstance(wanted, PythonImage) else wanted
        base, why = system.release.base, build.without_registry(system.release.suite)
        there = image.exists((system.below or system).tag)
        if why and not there and not _registry_has(base):
            message = f"no registry gives Docker {base}, and {why}"
            return Finding(kind, False, message, "sudo apt-get install mmdebstrap  # on Debian")
        return Finding(kind, True, f"the image {wanted.name} is built by the first `up`")
    return Finding(kind, True, "the node image is there")


def _registry_has(base: str) -> bool:
    try:
        daemon.client().images.get_registry_data(base)
    except (DockerException, requests.RequestException):
        return False
    return True


def _disk(info: dict[str, Any], spec: ClusterSpec | None) -> Finding:
    missing = [wanted for wanted in _images(spec) if not image.exists(wanted.tag)]
    packages = sum(isinstance(wanted, PythonImage) for wanted in missing)
    needed = (_FIRST_DISK if missing else _DISK) + packages * _PACKAGES
    root = Path(info["DockerRootDir"])
    free = shutil.disk_usage(root).free
    return _judged(
        "local.disk",
        free >= needed,
        f"{free / _GB:.0f} GB are free in {root}; a cluster needs about {needed / _GB:.0f} GB",
        "docker system df  # then: docker image prune --all --filter label=gpubed.image",
    )


def memory(planned: ClusterPlan, paths: ClusterPaths) -> Finding:
    """Look whether this machine has memory for the nodes that are not there yet."""
    uuid = record.uuid(paths)
    there = census.at_work(uuid) if uuid else set()
    missing = sum(node.name not in there for node in planned.nodes)
    if not missing:
        return Finding("local.memory", True, "all nodes are there, and have their memory")
    return _memory(missing, f"{missing} node(s)")


def _memory(nodes: int, whose: str) -> Finding:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    return _judged(
        "local.memory",
        available >= nodes * LEAST_MEMORY,
        f"{available / _GIB:.1f} GiB are available for {whose}, "
        f"{format_bytes(LEAST_MEMORY)} each at least",
        "ask for fewer nodes (nodes[].count), or stop other programs",
    )


def _cgroup(info: dict[str, Any]) -> Finding:
    limits = {"memory": info.get("MemoryLimit"), "cpu": info.get("CpuCfsQuota")}
    lacking = [name for name, there in limits.items() if not there]
    version = info.get("CgroupVersion", "1")
    if lacking:
        message = f"cgroup v{version} of this machine cannot limit: {', '.join(lacking)}"
        return Finding("local.cgroup", False, message, "leave out machine limits in the spec")
    return Finding("local.cgroup", True, f"cgroup v{version} limits CPU and memory")


def _kernel(needed: Sequence[str]) -> Finding:
    kind, release = "local.kernel", platform.release()
    options = _kernel_options(release)
    if options is None:
        return Finding(
            kind, True, f"kernel {release} does not tell its options; links are measured later"
        )
    lacking = [name for name in needed if f"CONFIG_{name}" not in options]
    if lacking:
        message = f"kernel {release} lacks {', '.join(f'CONFIG_{n}' for n in lacking)}"
        return Finding(kind, False, message, "boot a distribution's kernel")
    return Finding(kind, True, f"kernel {release} can do what links need")


def _kernel_options(release: str) -> set[str] | None:
    packed, plain = Path("/proc/config.gz"), Path(f"/boot/config-{release}")
    if packed.is_file():
        text = reading.file(packed).inflated().text()
    elif plain.is_file():
        text = reading.file(plain).text()
    else:
        return None
    return {line.partition("=")[0] for line in text.splitlines() if line.endswith(("=y", "=m"))}


def _environment() -> Finding:
    reasons = environment.left_out()
    if not reasons:
        return Finding(
            "local.environment", True, f"nodes get {len(environment.environment())} variables"
        )
    listed = "; ".join(f"{name} {why}" for name, why in sorted(reasons.items()))
    message = f"nodes do not get these variables: {listed}"
    fix = "name a proxy or index that nodes reach without a password, or unset the variable"
    return Finding("local.environment", False, message, fix)
