"""The interface of testbeds, independent of Ansible, roles and jobs.

A `Backend` is a kind of testbed: its abilities, and its resources as Pulumi sees them
(`component`). Bound to a cluster it is a `Testbed`, which makes and removes each kind of resource
(`driver`) and lists what exists (`describe`, `existing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpubed.core import reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing, UsageError

if TYPE_CHECKING:
    import pulumi

    from gpubed.core.paths import ClusterPaths
    from gpubed.nodes.allocation import Allocation, Cluster, Node
    from gpubed.nodes.openssh import Login
    from gpubed.nodes.ssh import SSH
    from gpubed.spec.clusterspec import ClusterSpec, Problem
    from gpubed.spec.plan import ClusterPlan, NodePlan, Surroundings
    from gpubed.testbeds.driver import Driver
    from gpubed.testbeds.options import TestbedOptions


def concrete(module: str, kind: type) -> Any:
    """Return the class in a module that implements an abstract class."""
    found = vars(import_module(module)).values()
    kinds = (each for each in found if isinstance(each, type) and issubclass(each, kind))
    return next(each for each in kinds if not isabstract(each))


@dataclass(frozen=True)
class Finding:
    """One line of `gpubed doctor`."""

    id: str  # dotted name of the check
    ok: bool
    message: str
    fix: str | None = None  # the command that repairs it, if the check failed


@dataclass(frozen=True)
class Existing:
    """A resource on a testbed that carries a cluster's name."""

    kind: str  # the testbed's name for this kind of resource
    name: str
    id: str  # its id on the testbed, which is also its id in the state
    uuid: str  # the UUID of its cluster: two clusters may have the same name
    transient: bool = False  # whether it ends by itself and is in no state, as a running job
    data: bool = False  # whether it holds users' data, which `down` removes only after a question
    stays: bool = False  # whether the specification has `gpubed down` keep it
    size: int | None = None  # bytes that it holds or can hold; None if unknown
    made: datetime | None = None  # when it was made; None if unknown
    node: str = ""  # the node's name, if its own disks are removed with it
    # Control address of a node in use; a new node with this address would replace it.
    address: str = ""
    heir: str = ""  # another node that the specification assigns to this node's host; else empty
    backend: str = field(default="", compare=False)  # set by `history.Testbeds`

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Identity:
    """Identifies a testbed among those of its kind."""

    id: str
    called: str  # its name in messages, with location and login
    formerly: tuple[str, ...] = ()  # ids of older versions, which testbeds may share


@dataclass(frozen=True)
class Fault:
    """A node that the testbed failed to make."""

    node: str  # its name in the plan
    reason: str  # the testbed's error message
    thing: Existing  # its remains on the testbed


@dataclass(frozen=True)
class Offer:
    """A testbed's machines of one kind; None for values that the testbed does not report."""

    name: str  # the testbed's name for them, as used in `cluster.yml`
    total: int | None = None
    free: int | None = None  # how many are available now
    gpus: int | None = None  # GPUs per machine
    gpu_model: str = ""
    note: str = ""


@dataclass(frozen=True)
class Lease:
    """The lease that the testbed confirmed; its end is None if nodes do not expire."""

    granted_until: datetime | None = None


class Backend(ABC):
    """A kind of testbed, and its abilities."""

    name: str  # name of its folder
    engine_required: Literal["cli"] | None = None  # the only engine that can make its resources
    native: frozenset[str] = frozenset()  # types that a Pulumi plugin makes and `existing` lists
    shapes_on_nodes: bool = False  # whether nodes limit their links to the declared rate themselves
    boots_later: bool = False  # whether a granted or restarted node may not answer SSH yet
    boots_within_s: float = 120.0  # seconds until a granted or restarted node answers SSH
    restarts: bool = False  # whether the testbed can restart a node that hangs
    nodes_are_here: bool = False  # whether nodes are on this machine, without a network in between
    exchanges_keys: bool = True  # whether the SSH key of an existing node can be exchanged
    vacates: bool = False  # whether making a node removes another node with its address
    lists_nodes: bool = False  # whether `existing` returns each of its nodes, with the node's id
    asks_before_growth: bool = False  # whether `refusals` is also called before nodes are added
    # Tells how to reach a former testbed of this kind again.
    return_hint: str = "put `backend:` of cluster.yml back as it was"
    replacement_hint: str = ""  # names an event that replaces a testbed by another one
    data_records: frozenset[str] = frozenset()  # files of the state that `data_within` needs

    def canonical_id(self, id_: str) -> str:
        """Return the normal form of a testbed's id, for comparison."""
        return id_

    @property
    def when_silent(self) -> str:
        """Tells what `up` does about a node that does not answer."""
        if self.restarts:
            return f"it is restarted if it stays silent for {self.boots_within_s / 60:g} min"
        return "only you can check its power, network and sshd"

    def require_engine(self, engine: str) -> None:
        """Refuse, as PrerequisiteMissing, an engine that cannot make the testbed's resources."""
        if self.engine_required and engine != self.engine_required:
            raise PrerequisiteMissing(
                f"backend {self.name} needs Pulumi's CLI and its plugin {self.name!r}: "
                "its resources are not for the embedded engine",
                "gpubed doctor CLUSTER --fix, and put `pulumi` on PATH",
            )

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Return the parts of a specification that this testbed cannot satisfy."""
        return []

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return whether the testbed limits experiment links to their declared rate."""
        return False

    def bind(self, reach: TestbedOptions, paths: ClusterPaths) -> Testbed:
        """Return the testbed of a cluster; reads no file and asks no server yet.

        The default imports its class from the backend's module `testbed`, whose libraries are slow
        to import.
        """
        testbed: type[Testbed] = concrete(f"gpubed.backends.{self.name}.testbed", Testbed)
        return testbed(self, reach, paths)

    def doctor(self) -> list[Finding]:
        """Check this machine's prerequisites that do not depend on a cluster."""
        return []

    def repair(self, say: Callable[[str], None]) -> None:
        """Install the testbed's Pulumi plugins, for `gpubed doctor CLUSTER --fix`."""
        say(f"backend {self.name} needs no plugin of Pulumi's")

    @abstractmethod
    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare the cluster's resources; return the data of an `Allocation`."""

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the parts of a node's data that are known before it is granted."""
        address = node.experiment_address
        return {"experiment_address": str(address) if address else None}

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Return a plugin's error in terms of the specification; None if it is not known."""
        return None

    def driver(self, kind: str) -> Driver:
        """Return the driver of a kind of dynamic resource that needs no file of a cluster."""
        raise LookupError(f"backend {self.name} has no dynamic resource {kind!r}")

    def environment(self) -> dict[str, str]:
        """Return the variables that nodes need to reach package registries (CA, proxy)."""
        return {}

    def surroundings(self, spec: ClusterSpec, paths: ClusterPaths) -> Surroundings | None:
        """Return the subnets in use around a cluster.

        None if the cluster's name alone decides the subnets that a specification leaves open.
        """
        return None

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Return properties of these nodes that a user may not expect."""
        return []

    def export(self, plan: ClusterPlan, kind: str) -> str:
        """Return the cluster in another tool's format, `rspec` or `espec`; else UsageError."""
        raise UsageError(f"backend {self.name} has no {kind}")


class Testbed(ABC):
    """The testbed of one cluster.

    `existing` keeps the hosts that it found and missed: `unseen`, `left_as_is` and `remove` must be
    called on the same object after it.
    """

    def __init__(self, backend: Backend, reach: TestbedOptions, paths: ClusterPaths) -> None:
        self.backend, self.reach, self.paths = backend, reach, paths

    @abstractmethod
    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check all prerequisites of the first `up`."""

    def driver(self, kind: str) -> Driver:
        """Return the driver of a kind of dynamic resource."""
        return self.backend.driver(kind)

    @abstractmethod
    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node by name: `ready`, `stopped`, `missing`, or another."""

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Power-cycle a node that hangs; its disks are kept, and it answers SSH some time later.

        Called only if `Backend.restarts`.
        """
        raise LookupError(f"backend {self.backend.name} restarts no node")

    @abstractmethod
    def identity(self) -> Identity | None:
        """Identify this testbed among those of its kind; None if there is only one.

        An edited specification may lead to another testbed. If `down` finds no resources there, the
        identity tells that the cluster may still exist. The id depends on the location of the
        resources, not on credentials or timeouts.
        """

    @abstractmethod
    def existing(self) -> list[Existing]:
        """Return all resources with the cluster's name, of any UUID, in order of their removal."""

    def unseen(self, known: Collection[str], left: Collection[str] = ()) -> list[str]:
        """Return hosts that the last `existing` could not check and that may hold resources.

        The state has the nodes `known`; `down` leaves the nodes `left` as they are.
        """
        return []

    def own_hosts(self) -> dict[str, str]:
        """Return the addresses of hosts that the testbed does not lend, by node."""
        return {}

    def left_as_is(self, uuid: str) -> list[str]:
        """Return a sentence for each host that `down --without` skips, with its remains."""
        return []

    @abstractmethod
    def remove(self, thing: Existing) -> None:
        """Remove a resource, in the state or not; it may be gone already."""

    def data_within(self) -> list[Existing]:
        """Return data that outlives nodes and can only be reached through them."""
        return []

    def remove_data(self) -> list[Existing]:
        """Remove the data that `data_within` returns; return what could not be removed.

        Called only by `gpubed down`, before anything else is removed, and not if data is kept.
        """
        return []

    def unrefreshable(self) -> GpubedError | None:
        """Return why a plugin cannot refresh every resource now; None if it can."""
        return None

    def faults(self) -> list[Fault]:
        """Return the cluster's nodes that a plugin requested and the testbed failed to make.

        Callers remove their remains without a question, so none may belong to another cluster.
        """
        return []

    def plugin_environment(self) -> dict[str, str]:
        """Return the variables that let Pulumi's plugin find the same testbed as this backend.

        Empty values must not be set: the plugin would use them instead of the cluster's.
        """
        return {}

    def lease(self, allocation: Allocation) -> Lease:
        """Return the lease that the testbed confirmed."""
        return Lease()

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Extend the lease, never shorten it; return it as read back.

        Its end may be earlier than requested, or later if it was before.
        """
        raise UsageError(f"nodes of backend {self.backend.name} do not expire")

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the testbed's kinds of machines, and how many of each are free now."""
        raise UsageError(f"backend {self.backend.name} cannot tell what is free")

    def hosts(self, spec: ClusterSpec) -> list[SSH]:
        """Return sessions to machines that exist before they are nodes, with the nodes' names."""
        return []

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return findings for `plan`: why the cluster cannot be made now, and notes (`ok`)."""
        return []

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return the parts of a plan that the testbed would refuse.

        Called before resources of a cluster are deleted or replaced; resources that the cluster
        holds count as free.
        """
        return []


@dataclass(frozen=True)
class JobState:
    """A job on a testbed."""

    id: str
    name: str
    state: str  # its state, as the testbed names it
    reason: str = ""  # the reason for the state, for example for waiting; may be empty


@dataclass(frozen=True)
class World:
    """One Horovod world of a task: a job of its own on a testbed that runs jobs."""

    label: str  # its name for messages; empty if it is the only one
    here: Path  # the local folder for its results; it exists when the world runs
    command: Sequence[str]  # what each rank runs
    ranks: int  # world size
    nodes: int = 1

    def places(self) -> list[tuple[str, int]]:
        """Return the nodes of its results' hostfile, each with its slots; empty without one."""
        try:
            lines = reading.file(self.here / "hostfile").text().splitlines()
            hosts = [line.split(" slots=") for line in lines]
            return [(reading.short(name, 64), int(slots)) for name, slots in hosts]
        except (GpubedError, ValueError):
            return []


class Ended(NamedTuple):
    """The end of a world: the reason of a failure (else empty), and the kind of that reason."""

    reason: str = ""
    kind: str = "exit"


@dataclass(frozen=True)
class Task:
    """A job that is ready to be passed to a testbed."""

    job: str
    source: Path  # the folder to copy to the testbed
    names: Sequence[str]  # its files to copy, relative to it
    run_id: str  # unique in the cluster
    here: Path  # the run's local folder
    worlds: Sequence[World]  # one per item of `JobService.worlds`
    own: frozenset[str]  # names of gpubed's own files in a run's folder; no result may have them
    environment: Mapping[str, str]  # variables of each rank
    per_node: bool = False  # whether the command runs once per node and starts its ranks itself
    follow: bool = True  # whether to copy the targets of symbolic links instead of the links
    image: str | None = None  # the container image to run in, instead of the testbed's usual one
    # Installs the packages that the run's folder requires. Arguments: (session with a host, command
    # line of `make_layer.py` there, folder of environments), and the run's folder. Returns the
    # environment to start in; empty if the folder requires none.
    add_packages: Callable[[tuple[SSH | Login, str, str], str], str] = lambda *_: ""


class JobService(ABC):
    """Runs tasks on a testbed that runs jobs, and fetches their results; needs no node."""

    ends_early: bool = False

    def worlds(self, plan: ClusterPlan) -> Sequence[Sequence[NodePlan]]:
        """Return the nodes of each world of a task; by default each node is one."""
        return [[node] for node in plan.nodes]

    @abstractmethod
    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[Ended]:
        """Run all worlds to their ends; an interruption stops all of them on the testbed.

        `on_output` is called with each line that a world prints. Returns how each world ended,
        with the end of its log if it failed.
        """


class JobBackend(Backend):
    """A kind of testbed that runs jobs and lends no nodes: its allocations have none.

    `gpubed run` uses its service as the launcher of the backend's name.
    """

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse a network and services, which need nodes."""
        from gpubed.spec.clusterspec import Problem

        found = list[Problem]()
        if spec.networks.experiment:
            why = f"{self.name} has no network to declare: jobs use its own"
            found.append(Problem(("networks", "experiment"), why, "leave networks out"))
        for service in ("docker", "monitoring", "slurm", "hub"):
            if getattr(spec.services, service) is not None:
                why = f"{self.name} lends no nodes to run it on"
                found.append(Problem(("services", service), why, "leave it out"))
        return found

    @abstractmethod
    def service(self) -> JobService:
        """Return the service that takes jobs."""

    @abstractmethod
    def links(self, spec: ClusterSpec) -> dict[str, str]:
        """Return the URLs of the testbed's own services, by name."""


class JobTestbed(Testbed):
    """A testbed that runs jobs."""

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return nothing: there are no nodes."""
        return {}

    @abstractmethod
    def jobs(self, uuid: str) -> list[JobState]:
        """Return the cluster's jobs that the testbed still lists."""
