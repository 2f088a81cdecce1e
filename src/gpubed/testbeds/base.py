"""What a testbed must be able to do.

A `Backend` is what is true of a kind of testbed: what it can do, and its resources as Pulumi
sees them (`component`). Bound to a cluster it is a `Testbed`, which makes and removes each kind
of them (`driver`) and can tell what exists (`describe`, `existing`).
Neither knows anything of Ansible, roles or jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from gpubed.core.errors import GpubedError, PrerequisiteMissing, UsageError

if TYPE_CHECKING:
    import pulumi

    from gpubed.core.paths import ClusterPaths
    from gpubed.nodes.allocation import Allocation, Node
    from gpubed.nodes.ssh import SSH
    from gpubed.spec.clusterspec import ClusterSpec, Problem
    from gpubed.spec.plan import ClusterPlan, NodePlan, Surroundings
    from gpubed.testbeds.driver import Driver
    from gpubed.testbeds.reach import Reach
    from gpubed.testbeds.service import JobService


@dataclass(frozen=True)
class Finding:
    """One line of `gpubed doctor`.

    Attributes:
        id: Dotted name of what was looked at.
        ok: Whether it is as it should be.
        message: What was found.
        fix: The command that repairs it, when it is not ok.
    """

    id: str
    ok: bool
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class Existing:
    """Something on a testbed that carries a cluster's name.

    Attributes:
        kind: The testbed's word for it.
        name: Its name there.
        id: Its id there, which is also its id in the state.
        uuid: The cluster it belongs to: names may be used twice, ids not.
        transient: It ends by itself and no state knows of it: a running job.
        data: It holds what a researcher wrote: removed only when that was asked for.
        size: Bytes that are on it, or that it has room for; None where nobody knows.
        made: When it was made; None where nobody knows.
        node: The node that it is, if it is one with disks of its own that go with it.
        address: Its address on the control network, where it is a node in use and another node
            would have to take it from it; else empty.
        heir: The node that the specification makes of its host by now, where that is another
            one; else empty.
        backend: The testbed that has it; who asks several says so.
    """

    kind: str
    name: str
    id: str
    uuid: str
    transient: bool = False
    data: bool = False
    size: int | None = None
    made: datetime | None = None
    node: str = ""
    address: str = ""
    heir: str = ""
    backend: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Identity:
    """Which testbed of its kind one is.

    Attributes:
        id: What no other has.
        called: What people know it by: where it is, and which way leads there.
        formerly: What former versions took for its id, which may be that of others, too.
    """

    id: str
    called: str
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """A node that the testbed began to make and could not give.

    Attributes:
        node: Its name in the plan.
        reason: Why, in the testbed's own words.
        thing: What is left of it.
    """

    node: str
    reason: str
    thing: Existing


@dataclass(frozen=True)
class Offer:
    """Machines of one kind that a testbed has.

    Attributes:
        name: The testbed's word for them, as `cluster.yml` names it.
        total: How many there are; None where the testbed does not say.
        free: How many can be had now.
        gpus: GPUs per machine; None where the testbed does not say.
        gpu_model: What they are; may be empty.
        note: What else there is to know; may be empty.
    """

    name: str
    total: int | None = None
    free: int | None = None
    gpus: int | None = None
    gpu_model: str = ""
    note: str = ""


@dataclass(frozen=True)
class Lease:
    """How long the testbed confirmed the nodes; None where nodes do not expire."""

    granted_until: datetime | None = None


class Backend(ABC):
    """A kind of testbed; what a plan needs to know of it stands in its `BackendConfig`.

    Attributes:
        name: Its folder's name.
        engine_required: The only engine that its resources can be made with, if it is one.
        native: Types of resources that a Pulumi plugin makes for it and `existing` lists.
        shapes_on_nodes: Whether nodes hold their links to the declared rate themselves.
        boots_later: Whether nodes may be granted, or started again, before they answer SSH.
        boots_within_s: How long a node that was granted, or starts again, may take to answer SSH.
        restarts: Whether a node that hangs can be restarted by the testbed's own means.
        nodes_are_here: Whether nodes are on this machine, so that no way to them can fail.
        exchanges_keys: Whether nodes can be let in with another key than they were made with.
        vacates: Whether a node that is made takes its address from whatever has it.
        lists_nodes: Whether `existing` returns each of its nodes, with the id of that node.
        the_way_back: How a testbed of the kind that was left is reached again.
        is_no_more: How one may have come to be another though it is where it was; may be empty.
        data_records: Files of a cluster's state by which `data_within` finds its data again.
    """

    name: str
    engine_required: Literal["cli"] | None = None
    native: frozenset[str] = frozenset()
    shapes_on_nodes: bool = False
    boots_later: bool = False
    boots_within_s: float = 120.0
    restarts: bool = False
    nodes_are_here: bool = False
    exchanges_keys: bool = True
    vacates: bool = False
    lists_nodes: bool = False
    the_way_back: str = "put `backend:` of cluster.yml back as it was"
    is_no_more: str = ""
    data_records: frozenset[str] = frozenset()

    def spelled(self, id_: str) -> str:
        """Return the id of a testbed of this kind in the one spelling by which ids are compared."""
        return id_

    @property
    def when_silent(self) -> str:
        """What `up` does about a node that does not answer, in words."""
        if self.restarts:
            return f"it is restarted if it stays silent for {self.boots_within_s / 60:g} min"
        return "only you can see to its power, network and sshd"

    def require_engine(self, engine: str) -> None:
        """Refuse an engine that cannot make the testbed's resources.

        Raises:
            PrerequisiteMissing: It is not the one that the testbed needs.
        """
        if self.engine_required and engine != self.engine_required:
            raise PrerequisiteMissing(
                f"backend {self.name} needs Pulumi's CLI and its plugin {self.name!r}: "
                "its resources are not for the embedded engine",
                "gpubed doctor CLUSTER --fix, and put `pulumi` on PATH",
            )

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Return what of the specification this testbed cannot do."""
        return []

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Say whether links of the experiment network are held to the declared rate.

        Else they carry what their owner built, and more than declared is no fault.
        """
        return False

    @abstractmethod
    def bind(self, reach: Reach, paths: ClusterPaths) -> Testbed:
        """Return the testbed as a cluster sees it; nothing has been read or asked yet.

        Args:
            reach: How it is reached: what the cluster's specification says of it, when asked.
            paths: The cluster's paths.
        """

    def doctor(self) -> list[Finding]:
        """Look at what must be in place on this machine, whatever the cluster."""
        return []

    def repair(self, say: Callable[[str], None]) -> None:
        """Install what Pulumi's own installer can: `gpubed doctor CLUSTER --fix`."""
        say(f"backend {self.name} needs no plugin of Pulumi's")

    @abstractmethod
    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare the cluster's resources to Pulumi.

        Returns:
            An output that resolves to the data of an `Allocation`.
        """

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return what is known of a node before it is granted: what becomes of it in place."""
        address = node.experiment_address
        return {"experiment_address": str(address) if address else None}

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Return what a plugin's error means to who wrote the specification; None as it is."""
        return None

    def driver(self, kind: str) -> Driver:
        """Return the driver of a kind of dynamic resource that needs none of a cluster's files."""
        raise LookupError(f"backend {self.name} has no dynamic resource {kind!r}")

    def load(self) -> None:
        """Import the libraries that drivers use, where those cannot be imported by two at once."""
        return

    def environment(self) -> dict[str, str]:
        """Return the variables that nodes need to reach package registries (CA, proxy)."""
        return {}

    def surroundings(self, spec: ClusterSpec, paths: ClusterPaths) -> Surroundings | None:
        """Return what decides subnets that a specification does not name; None: the name does."""
        return None

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Return what somebody who builds on these nodes must know and would not guess."""
        return []

    def export(self, plan: ClusterPlan, kind: str) -> str:
        """Return the cluster in another tool's words: `rspec`, `espec`.

        Raises:
            UsageError: The testbed has no such words.
        """
        raise UsageError(f"backend {self.name} has no {kind}")


class Testbed(ABC):
    """A testbed as one cluster sees it.

    What a look has found out (the way to the testbed, a host behind a thing, what was silent)
    stays with it for the next question: whoever asks `existing` asks the same one for `unseen`,
    `left_as_is` and `remove`.

    Attributes:
        backend: Its kind.
        reach: How it is reached.
        paths: The cluster's paths.
    """

    def __init__(self, backend: Backend, reach: Reach, paths: ClusterPaths) -> None:
        self.backend, self.reach, self.paths = backend, reach, paths

    @abstractmethod
    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Look at everything that must be in place before the first create."""

    def driver(self, kind: str) -> Driver:
        """Return the driver of one kind of the cluster's dynamic resources."""
        return self.backend.driver(kind)

    @abstractmethod
    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node by name: ready, stopped, missing, or what else it is."""

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Restart a node that hangs, as its power switch does; what is on its disks stays.

        Asked only where `Backend.restarts`. It answers SSH some time later.

        Raises:
            GpubedError: The testbed did not.
        """
        raise LookupError(f"backend {self.backend.name} restarts no node")

    @abstractmethod
    def identity(self) -> Identity | None:
        """Return which testbed of its kind this is; None where no two can differ.

        By it `down` sees that an edited specification leads elsewhere, and does not take what it
        finds there, nothing, for all that there is of the cluster. So it is made of what says
        where things are; credentials and timeouts may change, and it stays the same.

        Raises:
            GpubedError: It cannot be asked.
        """

    @abstractmethod
    def existing(self) -> list[Existing]:
        """Return everything on the testbed that carries the cluster's name, whatever its UUID.

        What must go first comes first.
        """

    def unseen(self, known: Collection[str], left: Collection[str] = ()) -> list[str]:
        """Return what the last `existing` could not look at and may hold something of a cluster.

        Args:
            known: Nodes of which the cluster's state says what became of them.
            left: Nodes that failed and could not be cleared away.
        """
        return []

    def own_hosts(self) -> dict[str, str]:
        """Return the hosts that are not the testbed's to take back: by node, where SSH answers."""
        return {}

    def left_as_is(self, uuid: str) -> list[str]:
        """Say what stays on hosts that a `down` goes without, a line each."""
        return []

    @abstractmethod
    def remove(self, thing: Existing) -> None:
        """Remove something that exists, known to the state or not; it may have gone already."""

    def data_within(self) -> list[Existing]:
        """Return data that outlives nodes and that only they can reach."""
        return []

    def remove_data(self) -> list[Existing]:
        """Remove what `data_within` names; return what of it stays.

        Asked for by `gpubed down` alone, before anything else goes, and not if data is to stay.
        """
        return []

    def unrefreshable(self) -> GpubedError | None:
        """Return why a plugin cannot look at every resource now, with what helps.

        Raises:
            GpubedError: The testbed cannot be asked.
        """
        return None

    def faults(self) -> list[Fault]:
        """Return the cluster's own nodes that a plugin asked for and the testbed did not give.

        What is left of them is removed unasked: none of another cluster of the name is among them.
        """
        return []

    def plugin_environment(self) -> dict[str, str]:
        """Return the variables with which Pulumi's plugin finds what this backend finds.

        An empty one must not be set: the plugin would take it for the cluster's.
        """
        return {}

    def lease(self, allocation: Allocation) -> Lease:
        """Ask the testbed how long it confirmed the nodes."""
        return Lease()

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Ask for a longer lease; one that lasts as long already is never shortened.

        Returns:
            What the testbed granted, read back: it may be less than what was asked for,
            or more, where that was granted before.

        Raises:
            Refused: The testbed said no.
        """
        raise UsageError(f"nodes of backend {self.backend.name} do not expire")

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return what machines the testbed has, and how many of them are free now."""
        raise UsageError(f"backend {self.backend.name} cannot tell what is free")

    def hosts(self, spec: ClusterSpec) -> list[SSH]:
        """Return sessions to machines that are there before they are nodes, by their names."""
        return []

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the cluster cannot be had now; empty when it can, or nobody knows."""
        return []

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return for what the testbed would say no, as far as that can be asked beforehand.

        Asked before anything of a cluster is deleted or replaced; what it holds already counts
        as its own.
        """
        return []


@dataclass(frozen=True)
class JobState:
    """A job as its testbed has it.

    Attributes:
        id: The testbed's id.
        name: Its name there.
        state: The testbed's word for what it does.
        reason: Why, for example why it waits; may be empty.
    """

    id: str
    name: str
    state: str
    reason: str = ""


class JobBackend(Backend):
    """A kind of testbed that runs jobs and lends no nodes: its allocations have none.

    A launcher of its name hands jobs to it, the only one that can.
    """

    @abstractmethod
    def service(self) -> JobService:
        """Return what takes jobs."""

    @abstractmethod
    def links(self, spec: ClusterSpec) -> dict[str, str]:
        """Return the URLs of services that the testbed itself has, by name."""


class JobTestbed(Testbed):
    """A testbed of such a kind."""

    @abstractmethod
    def jobs(self, uuid: str) -> list[JobState]:
        """Return the cluster's jobs that the testbed still knows."""
