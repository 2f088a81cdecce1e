"""Nodes as containers that boot systemd: flags and limits."""

from __future__ import annotations

from typing import Any

from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from gpubed.backends.local import confinement, daemon, runtime
from gpubed.backends.local.machine import VirtualMachine
from gpubed.backends.local.runtime import CONFINED, NodeInputs, Runtime, cpu_quota, labels, put

_SYSTEMD: dict[str, Any] = {
    # The host's view of the tree works with both cgroup v1 and v2, and without --privileged.
    "cgroupns": "host",
    "tmpfs": {"/run": "", "/run/lock": ""},
    "environment": {"container": "docker"},
    "stop_signal": "SIGRTMIN+3",
}

# Nodes that run containers or simulate hardware mount, and own a part of the tree.
_WIDE: dict[str, Any] = {
    "cap_add": ["SYS_ADMIN", "NET_ADMIN"],
    "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
}
_TREE = {"/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"}}

# Device files that a simulated node makes; no driver answers them. The majors are those of nvidia
# and (dynamic on a real machine) nvidia-uvm and nvidia-caps.
_SIMULATED_DEVICES = ("c 195:* rwm", "c 511:* rwm", "c 510:* rwm")


def runtime_of(node: NodeInputs) -> Runtime:
    """Return the runtime that a node asks for."""
    return VirtualMachine() if node.runtime == "vm" else SystemContainer()


class SystemContainer(Runtime):
    """Boots systemd in the container; shares the kernel of this machine."""

    def flags(self, node: NodeInputs) -> dict[str, Any]:
        """Return the flags for systemd, the limits and the GPUs."""
        limits = cpu_quota(node) if node.cpus is not None else {}
        if node.memory is not None:
            limits |= _memory_limit(node.memory)
        return {"shm_size": _memory(node) // 2, **limits, **_SYSTEMD, **_rights(node)}

    def prepare(self, container: Container, node: NodeInputs) -> None:
        """Also write the files of a confined node."""
        super().prepare(container, node)
        if self.told(container):
            for file in confinement.files():
                put(container, file)

    def told(self, container: Container) -> dict[str, Any]:
        """Return the mark of a confined container; empty for others, as earlier versions made."""
        return {CONFINED: True} if confinement.holds(container.attrs["HostConfig"]) else {}

    def limit(self, container: Container, node: NodeInputs) -> None:
        """Set the limits; the container keeps running."""
        container.update(**cpu_quota(node), **_memory_limit(_memory(node)))


def _rights(node: NodeInputs) -> dict[str, Any]:
    place = confinement.place(node) if node.confined else None
    if place:
        return {**confinement.flags(place), "volumes": {**place.mounts, **runtime.mounts(node)}}
    return {
        **_WIDE,
        "volumes": {**_TREE, **runtime.mounts(node)},
        "mounts": [_docker_data(node)],
        "device_requests": _gpus(node),
        "device_cgroup_rules": list(_SIMULATED_DEVICES) if node.simulate else [],
    }


def _memory_limit(memory: int) -> dict[str, Any]:
    return {"mem_limit": memory, "memswap_limit": memory}


def _memory(node: NodeInputs) -> int:
    if node.memory is not None:
        return node.memory
    total: int = daemon.look().info()["MemTotal"]
    return total


def _gpus(node: NodeInputs) -> list[DeviceRequest]:
    if not node.gpus:
        return []
    return [DeviceRequest(device_ids=list(node.gpus), capabilities=[["gpu"]])]


def _docker_data(node: NodeInputs) -> Mount:
    """Return an anonymous volume: the kernel cannot stack Docker's overlay on the image's own."""
    return Mount("/var/lib/docker", source=None, labels=labels(node))
