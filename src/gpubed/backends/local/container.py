"""Nodes as containers that boot systemd: rights, flags and limits.

A confined node has fewer rights than an ordinary Docker container, and may write to its own cgroup.
Without SYS_ADMIN it can mount neither the hierarchies of cgroup v1 with their `release_agent`, nor
another /proc with this machine's settings. Nodes with Docker, simulated hardware or GPUs (untested
with less) have SYS_ADMIN, so they are not confined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from gpubed.backends.local import daemon, ownership, runtime
from gpubed.backends.local.machine import VirtualMachine
from gpubed.backends.local.runtime import (
    CONFINED,
    File,
    NodeInputs,
    Runtime,
    cpu_quota,
    labels,
    put,
)
from gpubed.core.paths import assets
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import NodePlan

_SYSTEMD: dict[str, Any] = {
    # Works with cgroup v1 and v2, without --privileged.
    "cgroupns": "host",
    "tmpfs": {"/run": "", "/run/lock": ""},
    "environment": {"container": "docker"},
    "stop_signal": "SIGRTMIN+3",
}

# Rights of nodes that are not confined: they mount file systems and write to the cgroup tree.
_WIDE: dict[str, Any] = {
    "cap_add": ["SYS_ADMIN", "NET_ADMIN"],
    "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
}
_TREE = {"/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"}}

# Device files of simulated nodes, without drivers. The majors are those of nvidia and (dynamic on a
# real machine) nvidia-uvm and nvidia-caps.
_SIMULATED_DEVICES = ("c 195:* rwm", "c 511:* rwm", "c 510:* rwm")

# Docker's default capabilities without MKNOD, and those for links and the firewall.
_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "SETGID", "SETUID", "SETPCAP"),
    *("KILL", "SYS_CHROOT", "AUDIT_WRITE", "NET_BIND_SERVICE", "NET_RAW", "NET_ADMIN"),
)
_CGROUPS = Path("/sys/fs/cgroup")
_TIDY_S = 3.0
# The hierarchies that systemd uses under cgroup v1. Only `unified` (v2) reports empty cgroups;
# without it, stopping units and logins take minutes.
_HIERARCHIES = ("systemd", "unified")
_OPEN = "root on {} can become root of this machine"
_BETTER = "`runtime: vm` gives nodes a kernel of their own"


class Place(NamedTuple):
    """A node's own part of the cgroup tree: the parent of its cgroup, and the mounts."""

    parent: str
    mounts: Mapping[str, dict[str, str]]


def runtime_of(node: NodeInputs) -> Runtime:
    """Return a node's runtime."""
    return VirtualMachine() if node.runtime == "vm" else SystemContainer()


class SystemContainer(Runtime):
    """Boots systemd in a container, with this machine's kernel."""

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
            for file in _files():
                put(container, file)

    def told(self, container: Container) -> dict[str, Any]:
        """Return the mark of a confined container; empty for others."""
        return {CONFINED: True} if holds(container.attrs["HostConfig"]) else {}

    def limit(self, container: Container, node: NodeInputs) -> None:
        """Set the limits; the container keeps running."""
        container.update(**cpu_quota(node), **_memory_limit(_memory(node)))


def _rights(node: NodeInputs) -> dict[str, Any]:
    if node.confined and (place := own_place(node)):
        confined = {"cap_drop": ["ALL"], "cap_add": list(_CAPABILITIES)}
        volumes = {**place.mounts, **runtime.mounts(node)}
        return {**confined, "cgroup_parent": place.parent, "volumes": volumes}
    gpus = DeviceRequest(device_ids=list(node.gpus), capabilities=[["gpu"]])
    return {
        **_WIDE,
        "volumes": {**_TREE, **runtime.mounts(node)},
        # An anonymous volume: the kernel cannot stack Docker's overlay on that of the image.
        "mounts": [Mount("/var/lib/docker", source=None, labels=labels(node))],
        "device_requests": [gpus] if node.gpus else [],
        "device_cgroup_rules": list(_SIMULATED_DEVICES) if node.simulate else [],
    }


def _memory_limit(memory: int) -> dict[str, Any]:
    return {"mem_limit": memory, "memswap_limit": memory}


def _memory(node: NodeInputs) -> int:
    if node.memory is not None:
        return node.memory
    total: int = daemon.look().info()["MemTotal"]
    return total


def warnings(spec: ClusterSpec) -> list[str]:
    """Return warnings about the rights of the planned and existing containers."""
    with daemon.errors("ask Docker how nodes can be confined"):
        why = obstacle(daemon.look().info())
        open_nodes = [] if why else _not_confined(spec)
    asked = {
        "services.docker": spec.services.docker is not None,
        "nodes[].gpus": any(group.gpus.per_node and not group.simulate for group in spec.nodes),
        "nodes[].simulate": any(group.simulate for group in spec.nodes),
    }
    needs = [f"this machine confines none: {why}"] if why else [key for key in asked if asked[key]]
    if needs:
        nodes = "a node" if why or spec.services.docker is not None else "a node with GPUs"
        return [f"{_OPEN.format(nodes)} ({', '.join(needs)}); {_BETTER}"]
    if open_nodes:
        names = ", ".join(open_nodes)
        return [f"{_OPEN.format(names)}, made by an earlier version; made anew it is confined"]
    return [f"nodes are confined containers, which share this machine's kernel; {_BETTER}"]


def _not_confined(spec: ClusterSpec) -> list[str]:
    labels = [f"{ownership.NAME}={spec.name}", ownership.NODE]
    found = daemon.look().containers.list(all=True, filters={"label": labels}, ignore_removed=True)
    return sorted(
        ownership.labels(each)[ownership.NODE]
        for each in found
        if not holds(each.attrs["HostConfig"])
    )


def wanted(spec: ClusterSpec, node: NodePlan) -> bool:
    """Return whether a node can be a confined container."""
    return spec.services.docker is None and not node.gpus and node.simulate is None


def own_place(node: NodeInputs) -> Place | None:
    """Return the node's part of the cgroup tree; None if Docker cannot confine nodes here."""
    info = daemon.look().info()
    if obstacle(info):
        return None
    suffix = ".slice" if info.get("CgroupDriver") == "systemd" else ""
    name = f"{_name(node.uuid, node.name)}{suffix}"
    parent = name if suffix else f"/{name}"
    if _is_unified(info):
        return Place(parent, {str(_CGROUPS / name): _bind(_CGROUPS / name, "rw")})
    mounts: dict[str, dict[str, str]] = {}
    for hierarchy in (_CGROUPS / each for each in _HIERARCHIES):
        own = hierarchy / name
        mounts |= {str(hierarchy): _bind(hierarchy, "ro"), str(own): _bind(own, "rw")}
    return Place(parent, mounts)


def obstacle(info: Mapping[str, Any]) -> str | None:
    """Return why this machine's Docker cannot confine nodes; None if it can."""
    if any("userns" in option for option in info.get("SecurityOptions") or []):
        return "its Docker maps users (userns), which may not write to the cgroup tree"
    if not _is_unified(info):
        for hierarchy in (_CGROUPS / each for each in _HIERARCHIES):
            if not hierarchy.is_dir():
                return f"its cgroup tree has no {hierarchy}"
    return None


def holds(host: Mapping[str, Any]) -> bool:
    """Return whether a container with this `HostConfig` is confined."""
    return "ALL" in (host.get("CapDrop") or []) and not host.get("Privileged")


def _files() -> list[File]:
    """Return the files of a confined node."""
    root = assets() / "templates" / "confined"
    return [
        File(
            str(path.relative_to(root)),
            path.read_bytes(),
            0o755 if path.parent.name == "sbin" else 0o644,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]


def tidy(uuid: str, node: str) -> None:
    """Remove a node's cgroups, which Docker leaves behind, if this user may."""
    name = _name(uuid, node)
    deadline = time.monotonic() + _TIDY_S
    # The kernel releases the cgroups of an ended container with a delay.
    for folder in [*_CGROUPS.glob(name), *_CGROUPS.glob(f"*/{name}")]:
        while os.access(folder.parent, os.W_OK) and folder.exists():
            for path, _, _ in os.walk(folder, topdown=False):
                with suppress(OSError):  # not empty, or removed by another process
                    Path(path).rmdir()
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)


def _is_unified(info: Mapping[str, Any]) -> bool:
    return str(info.get("CgroupVersion", "1")) == "2"


def _bind(path: Path, mode: str) -> dict[str, str]:
    return {"bind": str(path), "mode": mode}


def _name(uuid: str, node: str) -> str:
    # A dash in a slice's name would make it part of another slice.
    return f"gpubed_{uuid[:8]}_{node.replace('-', '_')}"
