"""The sections of `cluster.yml`: meaning and allowed values of each key.

`clusterspec` combines them, reads the file and explains its errors.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from gpubed.core import wording
from gpubed.core.units import (
    Bytes,
    Number,
    NumberOrNone,
    Port,
    Rate,
    Seconds,
    Whole,
    WholeOrNone,
    format_seconds,
)
from gpubed.spec.slurm import Slurm

NAMES = "lower-case letters, digits and '-', 30 at most, a letter first"
Name = Annotated[str, Field(pattern=wording.pattern(r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$", NAMES))]


def _usable(subnet: IPv4Network) -> IPv4Network:
    if subnet.is_loopback or subnet.is_multicast or subnet.is_link_local or subnet.is_reserved:
        raise ValueError(f"{subnet} is set aside for other purposes; take one of 10.0.0.0/8")
    return subnet


def _written(value: object) -> object:
    # Python accepts plain numbers as addresses: 0 and false would be 0.0.0.0.
    if isinstance(value, int):
        raise PydanticKnownError("string_type")
    return value


def any_network(value: object) -> object:
    """Check the text of an IPv4 or IPv6 network; return an IPv6 one as its object."""
    if not (isinstance(value, str) and ":" in value):
        return _network(value)
    try:
        return IPv6Network(value)
    except ValueError as error:
        raise ValueError(f"must be a network, such as 2001:db8::/32: {error}") from None


def _network(value: object) -> object:
    try:
        network = IPv4Network(_written(value), strict=False)
    except ValueError:
        raise ValueError("must be an IPv4 network, such as 198.51.100.0/24") from None
    address = str(value).partition("/")[0]
    if address != str(network.network_address):
        raise ValueError(
            f"has host bits set: write {network} for the network, or {address}/32 for the address"
        )
    return value


IpAddress = Annotated[IPv4Address, BeforeValidator(_written)]
Network = Annotated[IPv4Network, BeforeValidator(_network)]
Subnet = Annotated[Network, AfterValidator(_usable)]
MOST_GPUS = 16  # of one node
FOLDER = wording.pattern(
    r"^/[A-Za-z0-9._/-]*[A-Za-z0-9]$",
    "a folder's whole path, of letters, digits, '.', '_', '-' and '/', such as /shared",
)
Folder = Annotated[str, Field(pattern=FOLDER)]
FILE = wording.pattern(r"^(~/|/).+$", "a path that begins with / or ~/")


def _of_a_server(url: str) -> str:
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    return url


OF_A_SERVER = AfterValidator(_of_a_server)  # the patterns accept invalid hosts and ports
# System folders and those that a node serves; a mount would hide their content.
_SYSTEM = {
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found"),
    *("/proc", "/root", "/run", "/sbin", "/srv/gpubed", "/sys", "/usr"),
}
# Folders that must not be mount points themselves; folders below them may.
_FULL = {
    *("/home", "/opt", "/srv", "/tmp", "/var"),  # noqa: S108  # nothing is written there
    *("/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp"),  # noqa: S108
}


def _mountable(folder: str) -> str:
    path = PurePosixPath(folder)
    if str(path) != folder or ".." in path.parts:
        raise ValueError(f"{folder} is written in a roundabout way: no '//', '/./' or '..'")
    for one in (path, *path.parents):
        if str(one) in _SYSTEM or (one == path and str(one) in _FULL):
            raise ValueError(
                f"{folder} would hide what is in {one}, which the nodes' system needs; take a "
                "folder such as /shared or /mnt/shared"
            )
    return folder


MountPoint = Annotated[Folder, AfterValidator(_mountable)]
Device = Annotated[
    str, Field(pattern=wording.pattern(r"^/dev/[A-Za-z0-9/_-]+$", "a device, such as /dev/nvme0n1"))
]
LEAST_MEMORY = 512 * 2**20  # nodes with less do not boot and cannot be configured
_LEAST_CPUS = 0.1  # nodes with less take minutes to boot, longer than `up` waits


Memory = Annotated[Bytes, Field(ge=LEAST_MEMORY)]
# Directory services have users such as `First.Last`. None of these characters has a meaning in
# shells, sudoers, ssh_config or sshd_config; `@` would separate user and host in AllowUsers.
User = Annotated[
    str,
    Field(
        pattern=wording.pattern(
            r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$", "a user's name: letters, digits, '_', '.' and '-'"
        )
    ),
]


def _without_port(address: str) -> str:
    host, colon, port = address.partition(":")
    if colon and port.isdecimal():
        raise ValueError(
            f"names a port: write address: {host} and, as a key of its own, port: {port} "
            "(gpubed init NAME --from FILE takes a list of host:port)"
        )
    return address


# A name or an address, which OpenSSH cannot mistake for an option.
Address = Annotated[
    str,
    Field(
        pattern=wording.pattern(r"^[A-Za-z0-9][A-Za-z0-9.:-]*$", "a host's name or address"),
        max_length=253,
    ),
    AfterValidator(_without_port),
]


def _without_quotes(path: str) -> str:
    if '"' in path:
        raise ValueError("holds a double quote: rename the file")
    return path


KeyFile = Annotated[str, AfterValidator(_without_quotes)]


class Section(BaseModel):
    """A part of a specification; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Bastion(Section):
    """A host that others are reached through."""

    address: Address
    port: Port = 22
    user: User | None = Field(default=None, description="else the user of the hosts")
    key: KeyFile | None = Field(default=None, description="private key; else the key of the hosts")


class Machine(Section):
    """The resources that a node must have; on shared hosts also its limits."""

    cpus: NumberOrNone = Field(default=None, ge=_LEAST_CPUS, le=1024, description="CPU cores")
    memory: Memory | None = Field(default=None, description="at least `512 MiB`")


class Simulation(Section):
    """GPUs that a node pretends to have; nothing computes on them."""

    model: str = Field(description="one of docs/reference/gpu.md, such as A100-SXM4-80GB")
    gpus: WholeOrNone = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="how many the machine has, if more than the group's `gpus`",
    )


def _named(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


class Gpus(Section):
    """The GPUs of a node. Cut or shared, they are for jobs in Slurm that need a part of one."""

    per_node: Whole = Field(ge=0, le=MOST_GPUS, description="GPUs per node")
    mig: str | None = Field(
        default=None,
        pattern=wording.pattern(r"^[1-7]g\.[0-9]+gb$", "a profile of NVIDIA MIG, such as 1g.10gb"),
        description="cuts each GPU into as many slices of this MIG profile as it has room for",
    )
    shards: WholeOrNone = Field(
        default=None, ge=2, le=64, description="how many jobs may share each GPU; none is confined"
    )

    @property
    def whole(self) -> int:
        """How many GPUs a job can have as a whole through `gpubed run`."""
        return 0 if self.mig or self.shards else self.per_node

    @model_validator(mode="after")
    def _one_way_of_parting(self) -> Self:
        if self.mig and self.shards:
            raise ValueError("mig and shards exclude each other: a slice is shared by nobody")
        if (self.mig or self.shards) and not self.per_node:
            raise ValueError("mig and shards need GPUs, and per_node is 0")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        # Specifications from before had a number only, and their digests stay.
        return handler(self) if self.mig or self.shards else self.per_node


def _counted(value: object) -> object:
    return value if isinstance(value, dict | Gpus) else {"per_node": value}


class NodeGroup(Section):
    """Nodes of one kind, named `<name>-0`, and so on."""

    name: Name = "node"
    count: Whole = Field(ge=1, le=1000, description="how many nodes are wanted")
    min: WholeOrNone = Field(
        default=None, ge=1, description="the fewest nodes that are enough; by default all"
    )
    on_failure: Literal["replace", "leave_out"] = Field(
        default="replace",
        description="for failed nodes beyond `min`: `replace` asks for another one at once and at "
        "the next `up`, `leave_out` does not",
    )
    machine: Machine = Machine()
    gpus: Annotated[Gpus, BeforeValidator(_counted, json_schema_input_type=Gpus | int)] = Field(
        default=Gpus(per_node=0),
        description="GPUs per node; jobs start no ranks on a group without GPUs if other groups "
        "have some",
    )
    simulate: Annotated[
        Simulation | None, BeforeValidator(_named, json_schema_input_type=Simulation | str | None)
    ] = Field(
        default=None,
        description="GPU model that the nodes pretend to have; on the local backend only",
    )
    image: str = Field(
        default="debian-12",
        description="operating system, such as `debian-12`; `check` lists the supported ones",
    )

    @property
    def least(self) -> int:
        """The fewest nodes that are enough."""
        return self.min or self.count

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of its nodes, in order."""
        return tuple(f"{self.name}-{index}" for index in range(self.count))

    @model_validator(mode="after")
    def _min_is_at_most_count(self) -> Self:
        if self.min is not None and self.min > self.count:
            raise ValueError(f"min is {self.min}, but only {self.count} nodes are wanted")
        return self

    @model_validator(mode="after")
    def _simulates_what_it_asks_for(self) -> Self:
        if self.simulate is None:
            return self
        gpus = self.gpus.per_node
        if gpus == 0:
            raise ValueError("simulate needs GPUs, and gpus is 0")
        if self.simulate.gpus is not None and self.simulate.gpus < gpus:
            raise ValueError(f"simulate.gpus is {self.simulate.gpus}, less than gpus ({gpus})")
        return self


class ControlNetwork(Section):
    """The network that carries SSH; never shaped."""

    subnet: Subnet | None = Field(default=None, description="chosen by name when absent")


class Rdma(Section):
    """RDMA (RoCE v2) on the experiment network; `verify` fails if nodes lack it."""

    device: Literal["any", "hardware"] = Field(
        default="any", description="any: Soft-RoCE where a node has no adapter"
    )
    dscp: Whole = Field(
        default=26, ge=0, le=63, description="of RDMA packets; the upper three bits are a priority"
    )
    pfc: bool = Field(
        default=False, description="adapters pause that priority; the switches must agree"
    )
    floor: Number = Field(
        default=0.8, gt=0, le=1, description="the share of `rate` that RDMA writes must reach"
    )


class ExperimentNetwork(Section):
    """The network that jobs communicate over."""

    subnet: Subnet | None = Field(default=None, description="chosen by name when absent")
    rate: Rate = Field(
        description="of each node's link, both ways; ± 5 % where the testbed holds links to it "
        "(local, virtualwall, openstack with QoS), else the least: 80 %, or 40 Gbit/s over TCP"
    )
    mtu: Whole = Field(
        default=1500, ge=1280, le=9216, description="bytes; on OpenStack the cloud's own if absent"
    )
    latency: Seconds = Field(default=0.0, description="one way; not on containers")
    loss: Number = Field(default=0.0, ge=0, lt=1, description="fraction; not on containers")
    rdma: Rdma | None = Field(default=None, description="no RDMA when absent; `{}` asks for it")

    @property
    def rate_bps(self) -> int:
        """The declared rate of each node's link, in bit/s, both ways."""
        return self.rate


class Networks(Section):
    """Control network, and the experiment network where one is wanted."""

    control: ControlNetwork = ControlNetwork()
    experiment: ExperimentNetwork | None = None

    @model_validator(mode="after")
    def _do_not_overlap(self) -> Self:
        one, other = self.control.subnet, self.experiment and self.experiment.subnet
        if one and other and one.overlaps(other):
            raise ValueError(f"control {one} and experiment {other} overlap")
        return self


class Throughput(Section):
    """The required speed of a file system, measured on one node at a time."""

    read: Rate | None = Field(default=None, description="sequential, 1 MiB blocks")
    write: Rate | None = Field(default=None, description="sequential, 1 MiB blocks, synced")
    latency: Seconds | None = Field(default=None, description="99th percentile of 4 KiB reads")


class SharedStorage(Section):
    """A file system that all nodes see."""

    provider: Literal["auto", "volume", "nfs"] = Field(
        default="auto",
        description="volume: the testbed mounts it; nfs: a node serves it; "
        "auto: volume on the local backend, nfs elsewhere",
    )
    path: MountPoint = Field(
        default="/shared",
        description="mount point on all nodes: outside of system folders and of the other paths",
    )
    server: Name | None = Field(default=None, description="node that serves it; else the head")
    transport: Literal["tcp", "rdma"] = Field(default="tcp", description="what carries nfs")
    expect: Throughput | None = Field(
        default=None, description="what `verify` requires of each node, measured with fio"
    )


class Scratch(Section):
    """Fast storage on each node; `down` deletes its content."""

    path: MountPoint = Field(
        default="/scratch",
        description="mount point on each node: outside of system folders and of the other paths",
    )
    devices: Literal["auto"] | tuple[Device, ...] = Field(
        default="auto",
        description="disks; auto takes the unused NVMe ones, else a folder, "
        "and on own hosts always a folder",
    )


class Storage(Section):
    """Storage of the cluster."""

    shared: SharedStorage = SharedStorage()
    datasets: MountPoint = Field(
        default="/datasets", description="folder of datasets on all nodes: outside of other paths"
    )
    scratch: Scratch | None = None

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        places = {"shared.path": self.shared.path, "datasets": self.datasets}
        if self.scratch:
            places["scratch.path"] = self.scratch.path
        for (one, here), (other, there) in combinations(places.items(), 2):
            if _holds(here, there) or _holds(there, here):
                raise ValueError(
                    f"{one} ({here}) and {other} ({there}) must be apart: one is within the other"
                )
        return self


def _holds(folder: str, other: str) -> bool:
    return PurePosixPath(other).is_relative_to(folder)


class JupyterLab(Section):
    """JupyterLab on the head, over TLS and with a token."""

    # It runs as an ordinary user, for whom lower ports are forbidden.
    port: Whole = Field(default=8888, ge=1024, le=65535)
    sudo: bool = Field(
        default=False,
        description="it runs as the cluster's account, and so its token is root on all nodes; "
        "else as an account `jupyter`, which starts ranks on all nodes, but never as root",
    )
    sources: tuple[Network, ...] = Field(
        default=(),
        description="networks that may connect; by default the controller's address alone, which "
        "`gpubed configure` updates",
    )


_MIRROR = wording.pattern(r"^https?://[^\s/]+/?$", "the URL of a server, such as https://HOST:5000")


class Registry(Section):
    """A login to a registry of container images."""

    user: str = Field(
        pattern=wording.pattern(r"^[^\s:@/]+$", "a user's name, without white space, ':', '@', '/'")
    )
    password_file: str = Field(
        pattern=FILE, description="file on the controller, readable by its owner alone (0600)"
    )

    def password(self, where: str) -> str:
        """Return the password; `where` says in errors which part of the specification is read.

        Raises `PrerequisiteMissing` if the file cannot be read, or other users can read it.
        """
        from gpubed.core import secret  # loads much that a specification does not need

        path, fix = Path(self.password_file).expanduser(), f"correct {where}.password_file"
        return secret.password(path, fix).decode(errors="replace")


Registries = dict[
    Annotated[
        str,
        Field(
            pattern=wording.pattern(r"^[a-z0-9.-]+(:[0-9]+)?$", "a registry, as HOST or HOST:PORT")
        ),
    ],
    Registry,
]


def registry_of(image: str) -> str:
    """Return the registry in an image's name, as Docker reads it: `docker.io` if it names none."""
    host, slash, _ = image.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else "docker.io"


class Docker(Section):
    """Docker on all nodes, for jobs in containers."""

    data_root: Folder = Field(
        default="/var/lib/docker", description="images, containers and volumes; on a local disk"
    )
    user_access: bool = Field(
        default=True, description="the cluster's user may use it, and so be root on the nodes"
    )
    mirror: Annotated[str, Field(pattern=_MIRROR), OF_A_SERVER] | None = Field(
        default=None, description="URL of a registry that keeps copies of images"
    )
    registries: Registries = Field(
        default={}, description="logins with which images of jobs are pulled, by registry"
    )


class Monitoring(Section):
    """Prometheus with alerts on the head, exporters on all nodes, and a status page."""

    port: Whole = Field(default=9090, ge=1024, le=65535, description="on loopback of the head")
    retention: Seconds = Field(default=1296000.0, ge=3600, description="how long figures are kept")


class Hub(Section):
    """JupyterHub on the head: each researcher's JupyterLab is a Slurm job."""

    port: Whole = Field(default=8000, ge=1024, le=65535)
    idle: Seconds = Field(
        default=3600.0, ge=60, description="without use; then a researcher's server is stopped"
    )
    admins: tuple[str, ...] = Field(
        default=(), description="researchers who see all servers and may stop them"
    )
    sources: tuple[Network, ...] = Field(
        default=(), description="networks that may connect; by default the controller's address"
    )


class Tracking(Section):
    """MLflow on the head: runs, curves and registered models, over TLS and with a password."""

    port: Whole = Field(default=5000, ge=1024, le=65535)
    memory: Memory = Field(default=2 * 2**30, description="of the server at most")
    sources: tuple[Network, ...] = Field(
        default=(), description="networks that may connect; by default the controller's address"
    )


NATS_CLIENT = "nats-py==2.16.0"


class Streams(Section):
    """NATS JetStream: streams, keys and objects, over TLS, an account for each researcher."""

    port: Whole = Field(default=4222, ge=1024, le=65535)
    replicas: Literal[1, 3] = Field(
        default=1,
        description="servers: 1 on the head, or 3 on the first nodes, of which one may fail",
    )
    quota: Bytes = Field(
        default=10 * 2**30, ge=2**20, description="of an account's streams, keys and objects"
    )
    retention: Seconds = Field(
        default=7 * 86400.0, ge=60, description="of messages, where a program does not set its own"
    )


class Serving(Section):
    """Registered models answer requests, over TLS and with a token."""

    port: Whole = Field(default=8443, ge=1024, le=65535)


class Services(Section):
    """What runs on the cluster besides jobs."""

    jupyterlab: JupyterLab | None = JupyterLab()
    docker: Docker | None = Field(default=None, description="off unless given; {} switches it on")
    # Off by default: exporters take CPU time on the nodes whose speed is measured.
    monitoring: Monitoring | None = None
    slurm: Slurm | None = None
    hub: Hub | None = None
    tracking: Tracking | None = None
    streams: Streams | None = None
    serving: Serving | None = None

    @model_validator(mode="after")
    def _hub_has_researchers(self) -> Self:
        if self.hub is None:
            return self
        if self.slurm is None:
            raise ValueError("hub needs slurm, whose users log in and whose jobs are their servers")
        unknown = sorted(set(self.hub.admins) - {user.name for user in self.slurm.users})
        if unknown:
            raise ValueError(f"hub.admins: {unknown[0]!r} is not one of slurm.users")
        return self

    @model_validator(mode="after")
    def _serving_has_what_it_needs(self) -> Self:
        missing = [name for name in ("slurm", "tracking") if getattr(self, name) is None]
        if self.serving and missing:
            raise ValueError(
                f"serving needs {' and '.join(missing)}: replicas are Slurm jobs, and models come "
                f"from the tracking server; add '{missing[0]}: {{}}' under services"
            )
        return self


class Packages(Section):
    """Which packages roles may change although gpubed did not install them."""

    may_change: tuple[
        Annotated[
            str,
            Field(
                pattern=wording.pattern(r"^[a-z0-9][a-z0-9+.-]+$", "a package's name"),
                max_length=200,
            ),
        ],
        ...,
    ] = Field(
        default=(),
        description="packages of a host's owner that an installation may remove, downgrade or "
        "replace; an installation that would change other packages is refused",
    )


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is no requirement, such as 'einops' or 'timm==1.0.9'") from None
    return text


class Python(Section):
    """Additions to the cluster's Python environment."""

    packages: tuple[Annotated[str, AfterValidator(_requirement)], ...] = Field(
        default=(),
        description="Python packages, as in requirements.txt; the cluster's own, such as torch, "
        "keep their versions",
    )


class Opening(Section):
    """A port that is open to hosts outside the cluster."""

    port: Port
    protocol: Literal["tcp", "udp"] = "tcp"
    source: Network = IPv4Network("0.0.0.0/0")
    comment: str = Field(
        default="",
        max_length=80,
        pattern=wording.pattern(r'^[^"\n\\]*$', "one line without quotes and backslashes"),
    )


class Firewall(Section):
    """Denies by default; allows SSH, the cluster's own nodes and these openings."""

    enabled: bool = True
    open: tuple[Opening, ...] = ()


class RenewalPolicy(Section):
    """When `gpubed renew --auto` asks for more time."""

    margin: Seconds = Field(
        default=7200.0,
        gt=0,
        description="remaining time at which to renew, limited to half of `lease.duration`",
    )
    most: Seconds = Field(
        default=604800.0, gt=0, description="total time for which the cluster is kept, at most"
    )


class BeforeEnd(Section):
    """What `gpubed renew --auto` does before a lease ends that cannot be renewed."""

    margin: Seconds = Field(default=1800.0, gt=0, description="how long before the end")
    command: str = Field(
        default="", max_length=1000, description="run on the head first, to write a checkpoint"
    )
    collect: bool = Field(
        default=True,
        description="copy the results of all runs from the head, and the newest checkpoints "
        "if they are on a node's disk",
    )


class Idle(Section):
    """What `gpubed watch` does about a cluster that is not used."""

    after: Seconds = Field(
        ge=600,
        description="time without jobs, GPU or CPU use, keys typed or notebooks run, on all nodes",
    )
    warning: Seconds = Field(
        default=1800.0, ge=300, description="time from the warning to the release; use cancels it"
    )
    then: Literal["warn", "release"] = Field(
        default="warn",
        description="release: collect results and give the nodes back; volumes stay, data on the "
        "nodes' own disks is lost",
    )
    hook: str = Field(
        default="",
        max_length=1000,
        description="command run on the controller, with `GPUBED_CLUSTER` and `GPUBED_IDLE` (warn, "
        "back, released)",
    )


class OnNodes(Section):
    """What nodes do by themselves at the end of a lease, even without a controller."""

    warning: Seconds = Field(
        default=1800.0, ge=300, description="before the end: a message on all terminals"
    )
    stop: Seconds = Field(
        default=600.0,
        ge=180,
        description="before the end: running jobs get SIGTERM, to write a checkpoint and end, and "
        "no other job starts; at the end, jobs and all processes on GPUs are killed",
    )

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if self.stop > self.warning:
            raise ValueError(
                f"stop ({format_seconds(self.stop)}) must not come before the warning "
                f"({format_seconds(self.warning)})"
            )
        return self


class Lease(Section):
    """How long the cluster is needed."""

    duration: Seconds = Field(default=86400.0, gt=0)
    renewal: RenewalPolicy = RenewalPolicy()
    before_end: BeforeEnd = BeforeEnd()
    idle: Idle | None = Field(default=None, description="off when absent; `{after: 2 h}` warns")
    on_nodes: OnNodes | None = Field(
        default=None,
        description="off when absent; `{}` lets nodes act at the end of the lease by themselves. "
        "On testbeds without leases, the end is `duration` after the last renewal",
    )


class Experiment(Section):
    """The training that the cluster is for; `plan` and `resources` predict its rate."""

    model: str = Field(description="such as `resnet50`; `gpubed predict` names the others")
    batch: Whole = Field(default=32, ge=1, le=65536, description="images per rank and step")
    precision: Literal["fp32", "amp", "bf16"] = "fp32"
    gpu: str | None = Field(default=None, description="such as `v100`, if the testbed is silent")
    link: Rate | None = Field(default=None, description="of nodes without `networks.experiment`")
    target: NumberOrNone = Field(default=None, gt=0, description="images/s of all ranks together")
    epochs: Whole = Field(default=90, ge=1, le=100000, description="passes over the dataset")
    dataset_size: Whole = Field(default=1281167, ge=1, description="images; those of ImageNet")
