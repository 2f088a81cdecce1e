"""Nodes: their inputs, and the interface to make and use their containers."""

from __future__ import annotations

import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from docker.errors import NotFound
from docker.models.containers import Container
from pydantic import BaseModel, ConfigDict

from gpubed.backends.local import daemon, environment, ownership
from gpubed.backends.local.environment import NODE_BUNDLE
from gpubed.backends.local.ownership import Owner
from gpubed.core import reading
from gpubed.core.paths import private_cache
from gpubed.core.reading import Unreadable

# In a folder that accounts may not enter (templates/node makes it): root on a node of another
# cluster may have left a set-uid program in the cache.
NODE_CACHE = "/var/cache/gpubed/shared"
_HOST_KEY = "etc/ssh/ssh_host_ed25519_key.pub"
_KEYS = "home/gpubed/.ssh/authorized_keys"
_USER_ID = 1000
# A file in a container whose node is complete. Earlier versions made neither the file nor the label
# MARKED.
MADE = "/var/lib/gpubed/made"
MARKED = "gpubed.marked"
_CPU_PERIOD_US = 100_000
_LARGEST = 2**20  # bytes
UPDATABLE = frozenset({"cpus", "memory", "link", "public_key", "certificates"})
CONFINED = "confined"
_RESTART = {"Name": "unless-stopped"}


class _Model(BaseModel):
    # Inputs of a resource also have `backend` and `kind`.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Attachment(_Model):
    """An address on a Docker network."""

    network: str
    address: str


class Link(_Model):
    """The shaping of the node's interface on the experiment network."""

    subnet: str
    rate_bps: int
    mtu: int
    latency: float = 0.0  # of outgoing packets, in seconds
    loss: float = 0.0  # fraction of outgoing packets

    @property
    def text(self) -> str:
        """The content of /etc/gpubed/link."""
        return (
            f"SUBNET={self.subnet}\nRATE_BPS={self.rate_bps}\nMTU={self.mtu}\n"
            f"DELAY_US={self.latency * 1e6:.0f}\nLOSS_PERCENT={self.loss * 100:.4f}\n"
        )


class Shared(_Model):
    """The shared volume, and the path of its mount."""

    volume: str
    path: str


class Simulation(_Model):
    """Simulated GPUs of a node."""

    model: str
    gpus: int


class NodeInputs(_Model):
    """All inputs of a node; numbers arrive as floats, Pulumi's only number type."""

    cluster: str
    uuid: str
    name: str
    runtime: Literal["container", "vm"] = "container"
    image: str
    public_key: str
    control: Attachment
    experiment: Attachment | None = None
    link: Link | None = None
    shared: Shared | None = None
    cpus: float | None = None
    memory: int | None = None
    gpus: tuple[str, ...] = ()
    simulate: Simulation | None = None
    certificates: str | None = None  # hash of the CA bundle that the environment names
    confined: bool = False  # whether to confine the container, if Docker can

    @property
    def owner(self) -> Owner:
        """The cluster."""
        return Owner(self.cluster, self.uuid)

    @property
    def digest(self) -> str:
        """A hash of the inputs that cannot change in place."""
        # A container with more rights than needed can stay.
        exclude = {*UPDATABLE, CONFINED}
        return ownership.digest(self.model_dump(mode="json", exclude=exclude))


class File(NamedTuple):
    """A file to be put into a container."""

    path: str
    content: bytes
    mode: int = 0o644
    folder_mode: int = 0o755
    owner: int = 0


class Runtime(ABC):
    """Makes the container of a node, and runs commands in the node."""

    files = ""  # the folder of the node's files in the container; empty for its root
    shell: Sequence[str] = ()  # the prefix of commands to run in the node

    @abstractmethod
    def flags(self, node: NodeInputs) -> dict[str, Any]:
        """Return Docker's options for creating the container."""

    def told(self, container: Container) -> dict[str, Any]:
        """Return facts about the container that `NodeDriver.diff` needs."""
        return {}

    @abstractmethod
    def limit(self, container: Container, node: NodeInputs) -> None:
        """Set the limits of an existing container, and stop it if necessary."""

    @contextmanager
    def turn(self, node: NodeInputs) -> Iterator[None]:
        """Wait until the node may boot, and hold its place while it does."""
        yield

    def make(self, node: NodeInputs) -> Container:
        """Create the container on both networks, without starting it."""
        client = daemon.client()
        address = client.api.create_endpoint_config(ipv4_address=node.control.address)
        container: Container = client.containers.create(
            node.image,
            name=node.owner.name(node.name),
            hostname=node.name,
            labels={**labels(node), MARKED: "yes"},
            network=node.control.network,
            networking_config={node.control.network: address},
            **{"restart_policy": _RESTART, "volumes": mounts(node), **self.flags(node)},
        )
        if node.experiment:
            network = client.networks.get(node.experiment.network)
            network.connect(container, ipv4_address=node.experiment.address)
        return container

    def prepare(self, container: Container, node: NodeInputs) -> None:
        """Put the node's files into a container that does not run."""
        if container.status == "created":
            key = f"{node.public_key.strip()}\n".encode()
            path = f"{self.files}{_KEYS}"
            put(container, File(path, key, 0o600, folder_mode=0o700, owner=_USER_ID))
        if node.simulate:
            file = simulation(node.name, node.simulate)
            put(container, file._replace(path=f"{self.files}{file.path}"))
        self.install_link(container, node)

    def exchange_key(self, container: Container, node: NodeInputs) -> tuple[int, str]:
        """Replace the cluster's former keys, which have no comment, by its present one."""
        # Nodes with other users have no such file.
        script = (
            f'[ ! -f /{_KEYS} ] || {{ sed -i "/^ssh-ed25519 [^ ]*$/d" /{_KEYS}'
            f' && printf "%s\\n" "$1" >> /{_KEYS}; }}'
        )
        return self.run(container, ["sh", "-c", script, "sh", node.public_key.strip()])

    def trust(self, container: Container) -> None:
        """Copy this machine's CA bundle to a node that does not mount it."""
        bundle = environment.ca_bundle()
        places = {mount["Destination"] for mount in container.attrs["Mounts"]}
        if bundle and places.isdisjoint({NODE_BUNDLE, str(Path(NODE_BUNDLE).parent)}):
            put(container, File(NODE_BUNDLE.lstrip("/"), reading.file(bundle).data, 0o644))

    def install_link(self, container: Container, node: NodeInputs) -> None:
        """Write the file that gpubed-link.service reads at boot."""
        if node.link:
            put(container, File(f"{self.files}etc/gpubed/link", node.link.text.encode()))

    def host_key(self, container: Container) -> str:
        """Read the public host key through Docker, not over the network.

        Raises Docker's `NotFound` until the node has made it.
        """
        key = get(container, f"/{self.files}{_HOST_KEY}").decode("ascii", errors="replace")
        return " ".join(key.split()[:2])

    def run(self, container: Container, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in the node; return its exit code and its whole output."""
        code, output = container.exec_run([*self.shell, *command])
        return int(code or 0), bytes(output).decode(errors="replace").strip()  # type: ignore[arg-type]


def simulation(name: str, wanted: Simulation) -> File:
    """Return the file that lists a node's simulated GPUs."""
    content = {"schema": "gpubed/simulation/1", **wanted.model_dump(), "node": name}
    return File("etc/gpubed/simulation.json", json.dumps(content).encode() + b"\n")


def labels(node: NodeInputs) -> dict[str, str]:
    """Return the labels of a node's Docker objects."""
    return {**node.owner.labels(node.digest), ownership.NODE: node.name}


def cpu_quota(node: NodeInputs) -> dict[str, Any]:
    """Return Docker's options for the CPU limit, which may be "no limit"."""
    # Without options, Docker keeps the former limit. It refuses to change nano_cpus into a quota.
    quota = -1 if node.cpus is None else round(node.cpus * _CPU_PERIOD_US)
    return {"cpu_period": _CPU_PERIOD_US, "cpu_quota": quota}


def put(container: Container, file: File) -> None:
    """Put a file into a container, running or not."""
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


def mark_made(container: Container) -> None:
    """Mark the node as complete: it may be in use from now on."""
    put(container, File(MADE.lstrip("/"), b""))


def is_in_use(container: Container) -> bool:
    """Return whether the node's own disk may hold a user's data.

    False for a node that a killed run left incomplete; True for nodes of versions without a mark.
    """
    if container.status == "created":
        return False
    if MARKED not in ownership.labels(container):
        return True
    try:
        container.get_archive(MADE)
    except NotFound:
        return False
    return True


def get(container: Container, path: str) -> bytes:
    """Read a file of a container; raise Docker's `NotFound` if it is missing."""
    chunks, _ = container.get_archive(path)
    archive = b""
    for chunk in chunks:
        archive += chunk
        if len(archive) > _LARGEST:  # root on a node may write files of any size
            break
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.next()
            file = tar.extractfile(member) if member else None
            return file.read() if file else b""
    except (tarfile.TarError, OSError) as error:
        raise Unreadable(f"{path} of {container.name} cannot be read: {error}") from None


def mounts(node: NodeInputs) -> dict[str, dict[str, str]]:
    """Return a node's mounts from this machine, in Docker's form."""
    # The folder above has the controller's images and locks.
    cache = private_cache() / "nodes"
    cache.mkdir(exist_ok=True)
    writable = {str(cache.resolve()): NODE_CACHE}
    if node.shared:
        writable[node.shared.volume] = node.shared.path
    return {source: {"bind": target, "mode": "rw"} for source, target in writable.items()} | {
        source: {"bind": target, "mode": "ro"} for source, target in environment.ca_mount().items()
    }
