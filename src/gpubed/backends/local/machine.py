"""Nodes as virtual machines: the container that runs qemu, and its settings."""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from docker.errors import ContainerError, NotFound
from docker.models.containers import Container

from gpubed.backends.local import daemon, environment
from gpubed.backends.local.runtime import NODE_CACHE, File, NodeInputs, Runtime, cpu_quota, get, put
from gpubed.core import paths, reading

_KVM = Path("/dev/kvm")
_ONE_AT_A_TIME = threading.Lock()
_PAUSE_S = 0.2
_SETTINGS = "machine/machine.json"
_CPUS, _MEMORY = 2, 2 * 2**30
_SHUTDOWN_S = 60
# Limits code that breaks out of the virtual machine. The container needs these capabilities to
# connect the machine to networks, and to write to shared folders as the machine's users.
_CONFINED: dict[str, Any] = {
    "cap_drop": ["ALL"],
    "cap_add": ["NET_ADMIN", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"],
    "security_opt": ["no-new-privileges:true"],
    "cgroupns": "private",
}


class VirtualMachine(Runtime):
    """A node with its own kernel; `templates/machine` holds the files of its container."""

    files = "machine/seed/"
    shell = ("gpubed-guest",)

    def flags(self, node: NodeInputs) -> dict[str, Any]:
        """Return the devices that qemu needs, and the container's few capabilities."""
        devices = ["/dev/net/tun", *(["/dev/kvm"] if _has_kvm(node.image) else [])]
        limits = cpu_quota(node) if node.cpus is not None else {}
        return {"devices": devices, **_CONFINED, **limits}

    def prepare(self, container: Container, node: NodeInputs) -> None:
        """Also write the machine's settings."""
        super().prepare(container, node)
        put(container, File(_SETTINGS, _settings(node)))

    def install_link(self, container: Container, node: NodeInputs) -> None:
        """Also write the file in a running machine."""
        super().install_link(container, node)
        if node.link and container.status == "running":
            write = 'printf %s "$1" > /etc/gpubed/link'
            self.run(container, ["sh", "-c", write, "sh", node.link.text])

    def limit(self, container: Container, node: NodeInputs) -> None:
        """Set the limits; stop the machine if its CPUs or memory change."""
        container.update(**cpu_quota(node))
        with suppress(NotFound):  # it has never started
            text = reading.reply(get(container, f"/{_SETTINGS}"), f"{_SETTINGS} of {node.name}")
            has = text.json(dict[str, Any])
            if any(has.get(key) != wanted for key, wanted in _hardware(node).items()):
                container.stop(timeout=_SHUTDOWN_S)

    @contextmanager
    def turn(self, node: NodeInputs) -> Iterator[None]:
        """Limit the CPUs of booting machines to those of this machine: more take far longer.

        The limit holds for all clusters of this user.
        """
        folder = paths.cache() / "boot"
        folder.mkdir(parents=True, exist_ok=True)
        count = max(1, (os.cpu_count() or 1) // cpus(node))
        with ExitStack() as held:
            places = [held.enter_context((folder / str(n)).open("w")) for n in range(count)]
            while not any(_lock(place) for place in places):
                time.sleep(_PAUSE_S)
            yield


def cpus(node: NodeInputs) -> int:
    """Return how many CPUs a machine has; a fraction is a limit on the last one."""
    return math.ceil(node.cpus) if node.cpus is not None else min(_CPUS, os.cpu_count() or 1)


def _hardware(node: NodeInputs) -> dict[str, int]:
    return {"cpus": cpus(node), "memory": node.memory or _MEMORY}


def _settings(node: NodeInputs) -> bytes:
    settings = {
        **_hardware(node),
        "nameservers": environment.nameservers(),
        "shares": [*([node.shared.path] if node.shared else []), NODE_CACHE],
        "foreign": [NODE_CACHE],  # other clusters of this machine write to it, too
    }
    return json.dumps(settings).encode()


def _has_kvm(image: str) -> bool:
    # Nodes are made concurrently, and a failing start takes long.
    with _ONE_AT_A_TIME:
        return _KVM.exists() and _starts(image)


@cache
def _starts(image: str) -> bool:
    """Return whether the image's kernel starts under KVM."""
    try:
        daemon.client().containers.run(
            image,
            ["gpubed-machine", "probe"],
            devices=[str(_KVM)],
            network_mode="none",
            remove=True,
        )
    except ContainerError:
        return False
    return True


def _lock(place: IO[str]) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
