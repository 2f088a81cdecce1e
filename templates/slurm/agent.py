"""Starts the ranks of a job of Slurm: first `start` on its first node, by that `node` on each.

    agent.py start SLOTS COMMAND [ARGUMENT...]

Each node starts as many processes as it has slots, or one (GPUBED_PER_NODE). They find each other
through Horovod's Gloo at the first node, or by the variables of torch.distributed and torchrun, as
with gpubed-srun on a cluster of gpubed's own. Standard library only, besides Horovod itself.
"""

import ctypes
import fcntl
import importlib.util
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[2] / "roles/horovod/files"
RUN = Path(os.environ["GPUBED_RUN_DIR"])
SIOCGIFADDR = 0x8915  # netdevice(7)
PR_SET_PDEATHSIG = 1  # prctl(2)


def said(*words: str) -> str:
    """Return what a command prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def at(node: str) -> str:
    """Return where Slurm reaches a node: its own name may lead to no address, or to loopback."""
    found = re.search(r"\bNodeAddr=(\S+)", said("scontrol", "-o", "show", "node", node))
    return found[1] if found else node


def own_address(others: list[str]) -> str:
    """Return this node's address on the way to another one."""
    if not others:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((others[0], 9))  # sends nothing
        return str(way.getsockname()[0])


def interface(address: str) -> str:
    """Return the name of the interface that has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                found = fcntl.ioctl(any_, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


def rendezvous(hosts: str, count: int, address: str) -> dict[str, str]:
    """Start the server where Horovod's ranks find each other; return what leads there."""
    if importlib.util.find_spec("horovod") is None:
        return {}
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    secret = RUN / ".secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_urlsafe())
    os.environ["HOROVOD_SECRET_FILE"] = str(secret)
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(hosts), count))
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "180"),
    }


def start(slots: int, command: list[str]) -> int:
    """Start an agent on each node of the job; return srun's exit code."""
    if (RUN / ".cancelled").exists():
        return 1
    nodes = said("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    places = [at(node) for node in nodes]
    (RUN / "hostfile").write_text("".join(f"{node} slots={slots}\n" for node in nodes))
    os.environ["GPUBED_ADDRESS"] = address = own_address(places[1:])
    here = 1 if os.environ.get("GPUBED_PER_NODE") else slots
    hosts = ",".join(f"{node}:{here}" for node in nodes)
    os.environ |= {
        "GPUBED_PLACES": json.dumps(places),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000),
        **rendezvous(hosts, here * len(nodes), address),
    }
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    options = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    options += ["--export=ALL", "--unbuffered", "--kill-on-bad-exit=1"]
    options += [f"--cpus-per-task={cpus}"] if cpus else []
    agent = [sys.executable, __file__, "node", str(slots), *command]
    try:
        return subprocess.run(["srun", *options, *agent], check=False).returncode
    finally:
        (RUN / ".secret").unlink(missing_ok=True)


def end_with_agent() -> None:
    """Have the kernel end a rank whose agent was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ranks(slots: int) -> list[dict[str, str]]:
    """Return the variables of each process that this node starts."""
    number, count = (int(os.environ[f"SLURM_{name}"]) for name in ("PROCID", "NTASKS"))
    places = json.loads(os.environ["GPUBED_PLACES"])
    address = own_address(places[:number] or places[1:])
    here = 1 if os.environ.get("GPUBED_PER_NODE") else slots
    gpus, wanted = list[str](), int(os.environ.get("GPUBED_GPUS") or 0)
    if wanted:
        with suppress(OSError, subprocess.CalledProcessError):
            gpus = said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
        if len(gpus) < wanted:  # ranks would compute on the CPU, and nobody would know
            sys.exit(f"{os.environ['SLURMD_NODENAME']} has {len(gpus)} of {wanted} GPU(s) to use")
    shared = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GPUBED_NODE": os.environ["SLURMD_NODENAME"],
        "GPUBED_ADDRESS": address,
        "GPUBED_INTERFACE": interface(address),
        "HOROVOD_GLOO_IFACE": interface(address),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // slots)),
    }
    slot = {"size": here * count, "local_size": here, "cross_rank": number, "cross_size": count}
    made = []
    for local in range(here):
        placed = {**slot, "rank": number * here + local, "local_rank": local}
        one = {f"HOROVOD_{name.upper()}": str(value) for name, value in placed.items()}
        name = f"cuda:{gpus[local]}" if local < len(gpus) else "cpu"
        device = f"cuda:{local}" if local < len(gpus) else "cpu"
        made.append({**shared, **one, "GPUBED_DEVICE": device, "GPUBED_DEVICE_NAME": name})
    return made


def node(slots: int, command: list[str]) -> int:
    """Run this node's processes; return the exit code of the first that fails."""
    exits = [sys.executable, "-ISB", str(PROGRAMS / "gpubed-exit")]
    running = {}
    for rank in ranks(slots):
        words = ["sh", str(PROGRAMS / "gpubed-environment"), *exits, *command]
        process = subprocess.Popen(words, env={**os.environ, **rank}, preexec_fn=end_with_agent)
        running[process.pid] = process
    code = 0
    while running and not code:
        pid, status = os.wait()
        if running.pop(pid, None):
            code = os.waitstatus_to_exitcode(status)
    for process in running.values():
        process.kill()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    WAY = {"start": start, "node": node}[sys.argv[1]]
    sys.exit(WAY(int(sys.argv[2]), sys.argv[3:]))
