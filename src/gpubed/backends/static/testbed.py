"""The hosts of a cluster: looked at as their user, and as its nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gpubed.backends.static import named
from gpubed.core import parallel, places, record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.testbeds.base import Backend, Existing, Finding, Offer, Testbed
from gpubed.testbeds.driver import Driver, Properties

# Paramiko's library is slow to import, and most verbs need it not.
if TYPE_CHECKING:
    from gpubed.backends.static.config import Config, Host
    from gpubed.backends.static.node import Found
    from gpubed.core.paths import ClusterPaths
    from gpubed.nodes.allocation import Allocation
    from gpubed.nodes.ssh import SSH
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan
    from gpubed.testbeds.reach import Reach

T = TypeVar("T")
_Seen: TypeAlias = "tuple[Host, str, Found | GpubedError]"


class StaticTestbed(Testbed):
    """The hosts that a cluster is made of, or was."""

    def __init__(self, backend: Backend, reach: Reach, paths: ClusterPaths) -> None:
        super().__init__(backend, reach, paths)
        self._hosts: dict[str, tuple[Config, Host, str]] = {}  # what `existing` found, by id
        self._missed: list[_Missed] = []  # what it could not look at

    @cached_property
    def _known(self) -> Config | None:
        """The hosts that the cluster was made of, or is to be; None where none are known."""
        return named.config(self.reach)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Log in to every host, and judge what is to become a node; nothing is changed."""
        from gpubed.backends.static.node import is_node
        from gpubed.spec import plan

        planned = plan.plan(spec)
        return list(self._judged(planned, self._seen(planned), is_node))

    def driver(self, kind: str) -> Driver:
        """Return the driver of a node."""
        from gpubed.backends.static.node import NodeDriver

        return NodeDriver(self.reach, self.paths) if kind == "node" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Say of each node whether its host is still marked as such; away where it is silent."""
        from gpubed.backends.static.node import look
        from gpubed.nodes.ssh import SSH, LoginRefused, Unreachable

        def owner(node: Any) -> dict[str, str]:
            try:
                with SSH(node, self.paths) as ssh:
                    return look(ssh).owner
            except LoginRefused:
                # A host that was given back has forgotten the cluster's key: the user's own
                # key sees whether it is still marked.
                if (known := self._known) is None:
                    raise
                for host, name in named.each(known):
                    if (host.address, host.port) == (node.control_address, node.port):
                        with suppress(GpubedError):
                            return self._on(known, host, name, look).owner
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

        states = parallel.each(state, allocation.nodes)
        return {n.name: s for n, s in zip(allocation.nodes, states, strict=True)}

    def identity(self) -> None:
        """Return nothing: each host says whose it is, and `existing` asks those of before, too."""

    def existing(self) -> list[Existing]:
        """Return the hosts that are marked as nodes of the cluster.

        Those of the specification, and of the ones that were applied before: where no state knows
        them, nobody else would. One of these that is silent counts as taken out.
        """
        from gpubed.backends.static.node import look

        known, former = self._known, named.attempted(self.reach)
        missed = self._missed = list[_Missed]()
        if known is None:
            return []
        hosts = list(named.each(known))
        known_places = {(host.address, host.port) for host, _ in hosts}
        gone = []
        for host, name in (found for config in former for found in named.each(config)):
            if (host.address, host.port) not in known_places:
                known_places.add((host.address, host.port))
                gone.append((host, name))

        def find(host: Host, name: str) -> Existing | None:
            try:
                owner = self._on(known, host, name, look).owner
            except GpubedError as error:
                if (host, name) not in gone:
                    missed.append(_Missed(name, host, error.message))
                return None  # removing a node that the state knows fails by itself
            if owner.get("cluster") != self.paths.name:
                return None
            self._hosts[owner["id"]] = known, host, name
            heir = name if name != owner["node"] else ""
            return Existing("node", owner["node"], owner["id"], owner["uuid"], heir=heir)

        return [thing for thing in _on_each([*hosts, *gone], find) if thing]

    def unseen(self, known: Collection[str], left: Collection[str] = ()) -> list[str]:
        """Return the hosts that nobody could look at, and why, but for what a `down` leaves."""
        missed = [one for one in self._missed if not one.is_left(self.paths)]
        wanted = named.nodes(self.reach)
        if wanted is None or not known:
            return [str(one) for one in missed if one.name not in known]
        # Where there is a state, a host that is to be no node was none.
        nodes = wanted.difference(known).union(left)
        return [str(one) for one in missed if one.name in nodes]

    def own_hosts(self) -> dict[str, str]:
        """Return the hosts of the specification: by node, where SSH answers."""
        hosts = named.each(self._known) if self._known else ()
        return {name: places.ssh(host.address, host.port) for host, name in hosts}

    def left_as_is(self, uuid: str) -> list[str]:
        """Say what stays on hosts that nobody could log in to, and that a `down` goes without."""
        from gpubed.backends.static.membership import stays

        left = [one for one in self._missed if one.is_left(self.paths)]
        return [f"{one}; {stays(uuid)}" for one in left]

    def remove(self, thing: Existing) -> None:
        """Take a cluster's key, mark and services from its host."""
        from gpubed.backends.static.membership import release

        config, host, name = self._hosts[thing.id]
        self._on(config, host, name, lambda ssh: release(ssh, thing.uuid))

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return every host of the specification, and whether it is free."""
        from gpubed.backends.static.node import look

        config = named.options(spec)

        def offer(host: Host, name: str) -> Offer:
            try:
                found = self._on(config, host, name, look)
            except GpubedError as error:
                return Offer(host.address, 1, 0, note=error.message)
            owner = found.owner
            note = f"node {owner['node']} of {owner['cluster']}" if owner else found.system
            return Offer(host.address, 1, 0 if owner else 1, found.gpus, note=note)

        return _on_each(named.each(config), offer)

    def hosts(self, spec: ClusterSpec) -> list[SSH]:
        """Return sessions to the hosts whose keys are known; `doctor` names the others."""
        config, found = named.options(spec), []
        for host, name in named.wanted(spec, config):
            with suppress(PrerequisiteMissing):
                found.append(self._session(config, host, name))
        return found

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Look at the hosts that cannot be done without: whether each can be the planned node."""
        return [found for found in self._judged(plan, self._seen(plan)) if not found.ok]

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Judge the hosts that answer, and whether GPUs there run the recipe's code."""
        from gpubed.backends.static.node import is_node, lacking

        # `doctor` and `up` say which are away.
        seen = [one for one in self._seen(plan) if not isinstance(one[2], GpubedError)]
        gpus = {node.name: node.gpus for node in plan.nodes if node.gpus}
        fix = (
            f"gpubed resources {plan.cluster} lists what each host has: name others, or lower gpus"
        )
        unfit = [
            Finding("static.gpus", False, f"{name} ({host.address}) {reason}", fix)
            for host, name, found in seen
            if name in gpus and not isinstance(found, GpubedError)
            for reason in lacking(found, gpus[name], plan.spec.recipe)
        ]
        wrong = [found for found in self._judged(plan, seen, is_node) if not found.ok]
        return list({found.message: found for found in [*wrong, *unfit]}.values())

    def _seen(self, plan: ClusterPlan) -> list[_Seen]:
        """Look at each host of a plan; an error stands for one that cannot be looked at."""
        from gpubed.backends.static.node import candidate, shut_out

        config = named.options(plan.spec)

        def seen(host: Host, name: str) -> _Seen:
            def look(ssh: SSH) -> Found:
                found = candidate(ssh)
                shut = shut_out(ssh, plan.spec, name) if found.sudo else []
                return replace(found, shut_out=tuple(shut))

            try:
                return host, name, self._on(config, host, name, look)
            except GpubedError as error:
                return host, name, error

        return _on_each(named.wanted(plan.spec, config), seen)

    def _judged(
        self,
        plan: ClusterPlan,
        seen: Iterable[_Seen],
        passes: Callable[[Found, Properties], bool] = lambda *_: False,
    ) -> Iterator[Finding]:
        """Judge each host, and the differences between them.

        Args:
            plan: The cluster's.
            seen: The hosts.
            passes: Whether a host with sudo is not judged further.
        """
        from gpubed.backends.static.node import differences, problems

        uuid, answered = record.uuid(self.paths), {}
        nodes = {node.name: node for node in plan.nodes}
        for host, name, found in seen:
            node = nodes[name]
            wrong: dict[str, str | None]
            if isinstance(found, GpubedError):
                wrong = {f"{name}: {found.message}": found.hint}
            else:
                answered[name] = found
                known = {"host": host, "image": node.image, "gpus": node.gpus}
                inputs = {**known, "uuid": uuid, "name": name}
                well = found.sudo and passes(found, inputs)
                why = {} if well else problems(found, inputs)
                wrong = {f"{name} ({host.address}) {what}": fix for what, fix in why.items()}
                wrong |= dict.fromkeys(f"{name} ({host.address}): {s}" for s in found.shut_out)
                if not wrong:
                    yield Finding(
                        f"static.{name}", True, f"{name} ({host.address}): {found.system}"
                    )
            spare = node.on_failure is not None
            for what, fix in wrong.items():
                message = f"{what}; the cluster goes on without it" if spare else what
                yield Finding(f"static.{name}", spare, message, fix)
        yield from differences(answered, plan.spec)

    def _session(self, config: Config, host: Host, name: str) -> SSH:
        """Return a session to a host, logged in as the user would be."""
        from gpubed.backends.static.access import door
        from gpubed.nodes.ssh import SSH

        return SSH(door(config, host, name), self.paths, config.key)

    def _on(self, config: Config, host: Host, name: str, do: Callable[[SSH], T]) -> T:
        with self._session(config, host, name) as ssh:
            return do(ssh)


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
        return places.ssh(self.host.address, self.host.port) in record.read(paths).without


def _on_each(hosts: Iterable[tuple[Host, str]], do: Callable[[Host, str], T]) -> list[T]:
    return parallel.each(lambda pair: do(*pair), hosts)
