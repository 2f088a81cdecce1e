"""The container of a node: its flags, its limits, and the files put into it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from typing import Any

from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from gpubed import paths
from gpubed.backends.local import daemon, environment, ownership
from gpubed.backends.local.node_inputs import NodeInputs

NODE_CACHE = "/var/cache/gpubed"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_USER_ID = 1000
_CPU_PERIOD_US = 100_000

# systemd wants to mount and to own its part of the cgroup tree. The host's view of that
# tree is the one that works with cgroup v1 and v2 alike, and without --privileged.
_SYSTEMD: dict[str, Any] = {
    "cap_add": ["SYS_ADMIN", "NET_ADMIN"],
    "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
    "cgroupns": "host",
    "tmpfs": {"/run": "", "/run/lock": ""},
    "environment": {"container": "docker"},
    "stop_signal": "SIGRTMIN+3",
    "restart_policy": {"Name": "unless-stopped"},
}


@dataclass(frozen=True)
class _File:
    path: str
    content: bytes
    mode: int = 0o644
    folder_mode: int = 0o755
    owner: int = 0


def make(node: NodeInputs) -> Container:
    """Create the container of a node, on both networks; does not start it."""
    client = daemon.client()
    address = client.api.create_endpoint_config(ipv4_address=node.control.address)
    container: Container = client.containers.create(
        node.image,
        name=node.owner.name(node.name),
        hostname=node.name,
        labels=_labels(node),
        network=node.control.network,
        networking_config={node.control.network: address},
        volumes=_mounts(node),
        mounts=[_docker_data(node)],
        shm_size=_memory(node) // 2,
        device_requests=_gpus(node),
        **_limits(node),
        **_SYSTEMD,
    )
    if node.experiment:
        network = client.networks.get(node.experiment.network)
        network.connect(container, ipv4_address=node.experiment.address)
    return container


def _labels(node: NodeInputs) -> dict[str, str]:
    return {**node.owner.labels(node.digest), ownership.NODE: node.name}


def _docker_data(node: NodeInputs) -> Mount:
    """Return a volume without a name, which goes with the container.

    The image's own layers are an overlay, and the kernel stacks no further one on them for
    a Docker that runs in the node.
    """
    return Mount("/var/lib/docker", source=None, labels=_labels(node))


def is_connected(container: Container, node: NodeInputs) -> bool:
    """Return whether a container is on the networks that there are now.

    One that was made by a killed run may lack one, or hold on to one of the same
    name that has been replaced since.
    """
    attached = container.attrs["NetworkSettings"]["Networks"]
    wanted = [node.control.network, *([node.experiment.network] if node.experiment else [])]
    networks = daemon.client().networks
    return all(
        # A container that never ran has no id of its networks, only their names.
        name in attached and attached[name]["NetworkID"] in ("", networks.get(name).id)
        for name in wanted
    )


def limit(container: Container, node: NodeInputs) -> None:
    """Set the limits of a container that exists; it keeps running."""
    # Docker takes a missing limit for "as it was", so "no limit" has to be said.
    memory = _memory(node)
    unlimited: dict[str, Any] = {"cpu_quota": -1, "mem_limit": memory, "memswap_limit": memory}
    container.update(**{**unlimited, **_limits(node)})


def install_key(container: Container, node: NodeInputs) -> None:
    """Let the cluster's key in."""
    key = f"{node.public_key.strip()}\n".encode()
    _put(
        container,
        _File("home/gpubed/.ssh/authorized_keys", key, 0o600, folder_mode=0o700, owner=_USER_ID),
    )


def install_link(container: Container, node: NodeInputs) -> None:
    """Write what gpubed-link.service reads at boot."""
    if node.link:
        _put(container, _File("etc/gpubed/link", node.link.text.encode()))


def host_key(container: Container) -> str:
    """Read the public host key through Docker, not over the network it will protect.

    Raises:
        docker.errors.NotFound: The node has not made it yet.
    """
    chunks, _ = container.get_archive(_HOST_KEY)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        file = tar.extractfile(tar.getmembers()[0])
        text = file.read().decode() if file else ""
    return " ".join(text.split()[:2])


def _put(container: Container, file: _File) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        folder = tarfile.TarInfo(file.path.rpartition("/")[0])
        folder.type, folder.mode = tarfile.DIRTYPE, file.folder_mode
        entry = tarfile.TarInfo(file.path)
        entry.size, entry.mode = len(file.content), file.mode
        for info in (folder, entry):
            info.uid = info.gid = file.owner
        tar.addfile(folder)
        tar.addfile(entry, io.BytesIO(file.content))
    container.put_archive("/", archive.getvalue())


def _mounts(node: NodeInputs) -> dict[str, dict[str, str]]:
    paths.cache().mkdir(parents=True, exist_ok=True)
    writable = {
        "/sys/fs/cgroup": "/sys/fs/cgroup",
        node.shared.volume: node.shared.path,
        str(paths.cache().resolve()): NODE_CACHE,
    }
    return {source: {"bind": target, "mode": "rw"} for source, target in writable.items()} | {
        source: {"bind": target, "mode": "ro"} for source, target in environment.ca_mount().items()
    }


def _limits(node: NodeInputs) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if node.cpus is not None:
        # Not nano_cpus: Docker refuses to change those together with a quota later.
        limits |= {"cpu_period": _CPU_PERIOD_US, "cpu_quota": round(node.cpus * _CPU_PERIOD_US)}
    if node.memory is not None:
        limits |= {"mem_limit": node.memory, "memswap_limit": node.memory}
    return limits


def _memory(node: NodeInputs) -> int:
    if node.memory is not None:
        return node.memory
    total: int = daemon.client().info()["MemTotal"]
    return total


def _gpus(node: NodeInputs) -> list[DeviceRequest]:
    if not node.gpus:
        return []
    return [DeviceRequest(device_ids=list(node.gpus), capabilities=[["gpu"]])]
