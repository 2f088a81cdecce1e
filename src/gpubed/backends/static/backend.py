"""The static backend: hosts of one's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend, Driver, Existing, Finding, Offer

# Pulumi's and paramiko's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.static.config import Config, Host
    from gpubed.core.paths import ClusterPaths
    from gpubed.nodes.allocation import Allocation
    from gpubed.nodes.ssh import SSH
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan

T = TypeVar("T")
_AT_ONCE = 16


class StaticBackend(Backend):
    """Hosts that somebody else installed; they are never rebooted or wiped unasked."""

    name = "static"
    lists_nodes = True

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[Access, Host, str]] = {}
        self._missed: dict[str, list[_Missed]] = {}  # by cluster

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Find groups without hosts, and hosts that cannot be on the experiment network."""
        from gpubed.backends.static import limits

        return limits.problems(spec)

    def doctor(self, spec: ClusterSpec | None) -> list[Finding]:
        """Log in to every host and look whether it can be a node; nothing is changed."""
        if spec is None:
            return []
        from gpubed.backends.static.node import look

        def finding(host: Host, name: str) -> Finding:
            id_ = f"static.{name}"
            try:
                found = _on(_access(spec), host, name, look)
            except GpubedError as error:
                return Finding(id_, False, error.message, error.hint)
            if not found.sudo:
                fix = f"write `{found.user} ALL=(ALL) NOPASSWD: ALL` into /etc/sudoers.d/gpubed"
                return Finding(id_, False, f"{name}: sudo asks for a password", fix)
            return Finding(id_, True, f"{name} ({host.address}): {found.system}")

        return _on_each(_wanted(spec), finding)

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare one node for each host."""
        from gpubed.backends.static.component import Cluster

        return Cluster(plan, uuid, public_key).allocation

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the way to the host: it changes in place."""
        from gpubed.backends.static import access

        config = _config(plan.spec)
        host = config.hosts[node.group][node.index]
        address = host.experiment_address
        found: dict[str, Any] = {
            "experiment_address": str(address) if address else None,
            "port": host.port,
            "user": config.user,
        }
        with suppress(PrerequisiteMissing):  # `doctor` and `up` name the key that is not known yet
            found["via"] = [hop.model_dump() for hop in access.hops(config)]
        return found

    def driver(self, kind: str) -> Driver:
        """Return the driver of a node."""
        from gpubed.backends.static.node import NodeDriver

        return NodeDriver() if kind == "node" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Say of each node whether its host is still marked as such; away where it is silent."""
        from gpubed.backends.static.node import look
        from gpubed.core.paths import Project
        from gpubed.nodes.ssh import SSH, LoginRefused, Unreachable

        paths = Project.find().cluster(allocation.cluster)

        def owner(node: Any) -> dict[str, str]:
            try:
                with SSH(node, paths) as ssh:
                    return look(ssh).owner
            except LoginRefused:
                # A host that was given back has forgotten the cluster's key: the user's own
                # key sees whether it is still marked.
                if (known := _known(paths)) is None:
                    raise
                for host, name in _all(known.config):
                    if (host.address, host.port) == (node.control_address, node.port):
                        with suppress(GpubedError):
                            return _on(known, host, name, look).owner
                raise

        def state(node: Any) -> str:
            try:
                id_ = owner(node).get("id")
            except Unreachable as error:
                # Whose key it is, and why nobody is let in, shows where nodes are logged in to.
                return "away" if error.is_silence else "ready"
            except GpubedError:
                return "missing"
            return "ready" if id_ == node.id else "missing"

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            states = pool.map(state, allocation.nodes)
            return {n.name: s for n, s in zip(allocation.nodes, states, strict=True)}

    def existing(self, cluster: str) -> list[Existing]:
        """Return the hosts that are marked as nodes of the cluster.

        Those of the specification, and of the ones that were applied before: where no state knows
        them, nobody else would. One of these that is silent counts as taken out.
        """
        from gpubed.backends.static import named
        from gpubed.backends.static.node import look
        from gpubed.core.paths import Project

        paths = Project.find().cluster(cluster)
        known, former = _known(paths), named.attempted(paths)
        missed = self._missed[cluster] = list[_Missed]()
        if known is None:
            return []
        hosts = list(_all(known.config))
        places = {(host.address, host.port) for host, _ in hosts}
        gone = []
        for host, name in (each for config in former for each in _all(config)):
            if (host.address, host.port) not in places:
                places.add((host.address, host.port))
                gone.append((host, name))

        def find(host: Host, name: str) -> Existing | None:
            try:
                owner = _on(known, host, name, look).owner
            except GpubedError as error:
                if (host, name) not in gone:
                    missed.append(_Missed(name, host, error.message))
                return None  # removing a node that the state knows fails by itself
            if owner.get("cluster") != cluster:
                return None
            self._hosts[owner["id"]] = known, host, name
            heir = name if name != owner["node"] else ""
            return Existing("node", owner["node"], owner["id"], owner["uuid"], heir=heir)

        return [thing for thing in _on_each([*hosts, *gone], find) if thing]

    def unseen(self, cluster: str, known: Collection[str], left: Collection[str] = ()) -> list[str]:
        """Return the hosts that nobody could look at, and why, but for what a `down` leaves."""
        from gpubed.backends.static import named
        from gpubed.core.paths import Project

        paths = Project.find().cluster(cluster)
        missed = [one for one in self._missed.get(cluster, ()) if not one.is_left(paths)]
        wanted = named.nodes(paths)
        if wanted is None or not known:
            return [str(one) for one in missed if one.name not in known]
        # Where there is a state, a host that is to be no node was none.
        nodes = wanted.difference(known).union(left)
        return [str(one) for one in missed if one.name in nodes]

    def own_hosts(self, cluster: str) -> dict[str, str]:
        """Return the hosts of the specification: by node, where SSH answers."""
        from gpubed.core.paths import Project
        from gpubed.testbeds import left_hosts

        known = _known(Project.find().cluster(cluster))
        hosts = _all(known.config) if known else ()
        return {name: left_hosts.place(host.address, host.port) for host, name in hosts}

    def left_as_is(self, cluster: str, uuid: str) -> list[str]:
        """Say what stays on hosts that nobody could log in to, and that a `down` goes without."""
        from gpubed.backends.static.membership import stays
        from gpubed.core.paths import Project

        paths = Project.find().cluster(cluster)
        left = [one for one in self._missed.get(cluster, ()) if one.is_left(paths)]
        return [f"{one}; {stays(uuid)}" for one in left]

    def remove(self, thing: Existing) -> None:
        """Take a cluster's key, mark and services from its host."""
        from gpubed.backends.static.membership import release

        access, host, name = self._hosts[thing.id]
        _on(access, host, name, lambda ssh: release(ssh, thing.uuid))

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return every host of the specification, and whether it is free."""
        from gpubed.backends.static.node import look

        def offer(host: Host, name: str) -> Offer:
            try:
                found = _on(_access(spec), host, name, look)
            except GpubedError as error:
                return Offer(host.address, 1, 0, note=error.message)
            owner = found.owner
            note = f"node {owner['node']} of {owner['cluster']}" if owner else found.system
            return Offer(host.address, 1, 0 if owner else 1, found.gpus, note=note)

        return _on_each(_all(_config(spec)), offer)

    def hosts(self, spec: ClusterSpec) -> list[SSH]:
        """Return sessions to the hosts whose keys are known; `doctor` names the others."""
        found = []
        for host, name in _wanted(spec):
            with suppress(PrerequisiteMissing):
                found.append(_session(_access(spec), host, name))
        return found

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Look at the hosts that cannot be done without: whether each can be the planned node."""
        from gpubed.backends.static.node import look, problems
        from gpubed.core.paths import Project
        from gpubed.testbeds import identities

        uuid = identities.kept(Project.find().cluster(plan.cluster))
        nodes = {node.name: node for node in plan.nodes if node.on_failure is None}

        def finding(host: Host, name: str) -> Finding | None:
            node = nodes[name]
            inputs = {"host": host, "image": node.image, "gpus": node.gpus, "uuid": uuid}
            try:
                wrong = problems(_on(_access(plan.spec), host, name, look), inputs)
            except GpubedError as error:
                return Finding(f"static.{name}", False, f"{name}: {error.message}", error.hint)
            message = f"{name} ({host.address}) {'; '.join(wrong)}"
            return Finding(f"static.{name}", False, message) if wrong else None

        wanted = [(host, name) for host, name in _wanted(plan.spec) if name in nodes]
        return [found for found in _on_each(wanted, finding) if found]

    def fits(self, plan: ClusterPlan) -> list[str]:
        """Look at the hosts that are to have GPUs: whether they have them, and the recipe code."""
        from gpubed.backends.static.node import lacking, look

        nodes = {node.name: node for node in plan.nodes if node.gpus}

        def why(host: Host, name: str) -> list[str]:
            try:
                found = _on(_access(plan.spec), host, name, look)
            except GpubedError:
                return []  # `doctor` and `up` say that it is away
            return lacking(found, nodes[name].gpus, plan.spec.recipe)

        wanted = [(host, name) for host, name in _wanted(plan.spec) if name in nodes]
        return [
            f"{name} ({host.address}) {reason}"
            for (host, name), reasons in zip(wanted, _on_each(wanted, why), strict=True)
            for reason in reasons
        ]


def _config(spec: ClusterSpec) -> Config:
    from gpubed.backends.static.config import Config

    if not isinstance(spec.backend, Config):
        raise PrerequisiteMissing(
            f"the specification of {spec.name} no longer says on which hosts it is",
            "put its former `backend:` back until the cluster is down",
        )
    return spec.backend


@dataclass(frozen=True)
class Access:
    """How a cluster's hosts are reached before they let the cluster in."""

    config: Config
    paths: ClusterPaths


@dataclass(frozen=True)
class _Missed:
    """A host that nobody could look at, with the name that its node has, or would have."""

    name: str
    host: Host
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.host.address}): {self.why}"

    def is_left(self, paths: ClusterPaths) -> bool:
        """Say whether a `down` goes without it."""
        from gpubed.testbeds import left_hosts

        return left_hosts.is_named(paths, self.host.address, self.host.port)


def _known(paths: ClusterPaths) -> Access | None:
    """Return the hosts that the cluster was made of, or is to be; None where none are known."""
    from gpubed.backends.static import named

    config = named.config(paths)
    return Access(config, paths) if config else None


def _access(spec: ClusterSpec) -> Access:
    from gpubed.core.paths import Project

    return Access(_config(spec), Project.find().cluster(spec.name))


def _all(config: Config) -> Iterator[tuple[Host, str]]:
    """Return every host with the name that its node has, or would have."""
    for group, hosts in config.hosts.items():
        yield from ((host, f"{group}-{index}") for index, host in enumerate(hosts))


def _wanted(spec: ClusterSpec) -> list[tuple[Host, str]]:
    names = {name for group in spec.nodes for name in group.node_names}
    return [(host, name) for host, name in _all(_config(spec)) if name in names]


def _session(known: Access, host: Host, name: str) -> SSH:
    """Return a session to a host, logged in as the user would be."""
    from gpubed.backends.static.access import door
    from gpubed.nodes.ssh import SSH

    return SSH(door(known.config, host, name), known.paths, known.config.key)


def _on(known: Access, host: Host, name: str, do: Callable[[SSH], T]) -> T:
    with _session(known, host, name) as ssh:
        return do(ssh)


def _on_each(hosts: Iterable[tuple[Host, str]], do: Callable[[Host, str], T]) -> list[T]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda pair: do(*pair), hosts))


def create() -> StaticBackend:
    """Make the backend; the registry calls this."""
    return StaticBackend()
