"""The hosts of a static cluster: finds, judges and releases them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from gpubed.backends.static import access, membership
from gpubed.backends.static.config import Config, Host, options
from gpubed.backends.static.host import (
    Found,
    candidate,
    differences,
    is_node,
    lacking,
    look,
    problems,
)
from gpubed.backends.static.node import NodeDriver
from gpubed.core import addresses, parallel, record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.hardware.table import chip_of
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.ssh import SSH, LoginRefused, Unreachable
from gpubed.spec import plan as plans
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Backend, Existing, Finding, Offer, Testbed
from gpubed.testbeds.driver import Driver
from gpubed.testbeds.options import TestbedOptions

T = TypeVar("T")
_Seen: TypeAlias = "tuple[Host, str, Found | GpubedError]"


class StaticTestbed(Testbed):
    """The current and former hosts of a cluster."""

    def __init__(self, backend: Backend, reach: TestbedOptions, paths: ClusterPaths) -> None:
        super().__init__(backend, reach, paths)
        self._hosts: dict[str, tuple[Config, Host, str]] = {}  # what `existing` found, by id
        self._missed: list[tuple[Host, str, GpubedError]] = []  # what `existing` failed to see

    @cached_property
    def _known(self) -> Config | None:
        return access.known(self.reach)

    def driver(self, kind: str) -> Driver:
        """Return the driver of a node."""
        return NodeDriver(self.reach, self.paths) if kind == "node" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return each node's state: ready if its host is marked, missing if not, away if silent."""

        def owner(node: Any) -> dict[str, str]:
            try:
                with SSH(node, self.paths) as ssh:
                    return look(ssh).owner
            except LoginRefused:
                # A released host refuses the cluster's key: look with the user's own.
                place, known = (node.control_address, node.port), self._known
                for host, name in access.each(known) if known else ():
                    if known and (host.address, host.port) == place:
                        with suppress(GpubedError):
                            return self._on(known, host, name, look).owner
                raise

        def state(node: Any) -> str:
            try:
                return "ready" if owner(node).get("id") == node.id else "missing"
            except Unreachable as error:
                # A wrong host key or refused login is reported where nodes are logged in to.
                return "away" if error.is_silence else "ready"
            except GpubedError:
                return "missing"

        states = parallel.each(state, allocation.nodes)
        return {n.name: s for n, s in zip(allocation.nodes, states, strict=True)}

    def identity(self) -> None:
        """Return None: each host names its cluster, and `existing` asks former hosts, too."""

    def existing(self) -> list[Existing]:
        """Return the hosts that are marked as nodes of the cluster.

        Asks hosts of the specification and of earlier ones; an earlier one that is silent counts as
        taken out.
        """
        missed = self._missed = []
        known = self._known
        if known is None:
            return []
        hosts = {(host.address, host.port): (host, name, True) for host, name in access.each(known)}
        for config in access.attempted(self.reach):
            for host, name in access.each(config):
                hosts.setdefault((host.address, host.port), (host, name, False))

        def find(found: tuple[Host, str, bool]) -> Existing | None:
            host, name, named = found
            try:
                owner = self._on(known, host, name, look).owner
            except GpubedError as error:
                if named:
                    missed.append((host, name, error))
                return None  # removing a node in the state reports the fault
            if owner.get("cluster") != self.paths.name:
                return None
            self._hosts[owner["id"]] = known, host, name
            heir = name if name != owner["node"] else ""
            return Existing("node", owner["node"], owner["id"], owner["uuid"], heir=heir)

        return [thing for thing in parallel.each(find, hosts.values()) if thing]

    def unseen(self, known: Collection[str], left: Collection[str] = ()) -> list[str]:
        """Return the hosts that could not be looked at, and why, except those `down` skips."""
        missed, spec = self._missed_hosts(left=False), self.reach.wanted or self.reach.last
        if spec is None or not known:
            return [said for name, said in missed if name not in known]
        # With a state, a host without a node in the specification was no node before.
        wanted = {name for group in spec.nodes for name in group.node_names}
        return [said for name, said in missed if name in wanted.difference(known).union(left)]

    def own_hosts(self) -> dict[str, str]:
        """Return the SSH address of each host of the specification, by node."""
        hosts = access.each(self._known) if self._known else ()
        return {name: addresses.ssh(host.address, host.port) for host, name in hosts}

    def left_as_is(self, uuid: str) -> list[str]:
        """Return what stays on the hosts that `down --without` skips."""
        stays = (
            f"its mark ({membership.MARK}), the cluster's key and its services stay there; once it "
            f"is back, on it: {membership.by_hand(uuid)}"
        )
        return [f"{said}; {stays}" for _, said in self._missed_hosts(left=True)]

    def _missed_hosts(self, *, left: bool) -> list[tuple[str, str]]:
        """Return name and fault of the missed hosts that `down` skips, or of the others."""
        return [
            (name, f"{name} ({host.address}): {error.message}")
            for host, name, error in self._missed
            if (addresses.ssh(host.address, host.port) in record.read(self.paths).without) == left
        ]

    def remove(self, thing: Existing) -> None:
        """Remove a cluster's key, mark and services from its host."""
        self._on(*self._hosts[thing.id], lambda ssh: membership.release(ssh, thing.uuid))

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return every host of the specification, and whether it is free."""
        config = options(spec)

        def offer(found: tuple[Host, str]) -> Offer:
            host, name = found
            try:
                seen = self._on(config, host, name, look)
            except GpubedError as error:
                return Offer(host.address, 1, 0, note=error.message)
            owner = seen.owner
            note = f"node {owner['node']} of {owner['cluster']}" if owner else seen.system
            chips = {chip.title for id_ in seen.gpu_ids if (chip := chip_of(id_))}
            model = ", ".join(sorted(chips))
            return Offer(host.address, 1, 0 if owner else 1, seen.gpus, model, note)

        return parallel.each(offer, access.each(config))

    def hosts(self, spec: ClusterSpec) -> list[SSH]:
        """Return sessions to the hosts whose keys are known; `doctor` reports the others."""
        config, found = options(spec), []
        for name, host in access.wanted(spec).items():
            with suppress(PrerequisiteMissing):
                found.append(self._session(config, host, name))
        return found

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Log in to every host, and judge whether it can be a node; nothing is changed."""
        planned = plans.plan(spec)
        return list(self._judged(planned, self._seen(planned), nodes_pass=True))

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the hosts cannot be the planned nodes."""
        return [found for found in self._judged(plan, self._seen(plan)) if not found.ok]

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Judge the hosts that answer, and whether their GPUs run the recipe's code."""
        # `doctor` and `up` say which are away.
        seen = [one for one in self._seen(plan) if not isinstance(one[2], GpubedError)]
        found = [one for one in self._judged(plan, seen, nodes_pass=True) if not one.ok]
        gpus = {node.name: node.gpus for node in plan.nodes if node.gpus}
        fix = (
            f"gpubed resources {plan.cluster} lists what each host has: name others, or lower gpus"
        )
        for host, name, about in seen:
            if isinstance(about, Found) and about.stays_open and plan.spec.firewall.enabled:
                found.append(Finding("static.firewall", True, f"{name}: {_left_open(about)}"))
            if name in gpus and isinstance(about, Found):
                for why in lacking(about, gpus[name], plan.spec.recipe):
                    message = f"{name} ({host.address}) {why}"
                    found.append(Finding("static.gpus", False, message, fix))
        return list({one.message: one for one in found}.values())

    def _seen(self, plan: ClusterPlan) -> list[_Seen]:
        """Look at each host of a plan; return the error for a host that fails."""
        config = options(plan.spec)

        def seen(found: tuple[str, Host]) -> _Seen:
            name, host = found
            try:
                about = self._on(config, host, name, lambda ssh: candidate(ssh, plan.spec))
            except GpubedError as error:
                return host, name, error
            return host, name, about

        return parallel.each(seen, access.wanted(plan.spec).items())

    def _judged(
        self, plan: ClusterPlan, seen: Iterable[_Seen], *, nodes_pass: bool = False
    ) -> Iterator[Finding]:
        """Judge each host, and their differences; `nodes_pass`: of nodes only sudo and sshd."""
        uuid, answered = record.uuid(self.paths), {}
        nodes = {node.name: node for node in plan.nodes}
        for host, name, found in seen:
            id_, node, called = f"static.{name}", nodes[name], f"{name} ({host.address})"
            wrong: dict[str, str | None]
            if isinstance(found, GpubedError):
                wrong = {f"{name}: {found.message}": found.hint}
            else:
                answered[name] = found
                inputs = {"host": host, "image": node.image, "gpus": node.gpus}
                inputs |= {"uuid": uuid, "name": name}
                why = problems(found, inputs)
                if nodes_pass and found.sudo and is_node(found, inputs):
                    why = dict.fromkeys(found.shut_out, "")
                wrong = {f"{called} {what}": fix for what, fix in why.items()}
                if not wrong:
                    yield Finding(id_, True, f"{called}: {found.system}")
            spare = node.on_failure is not None
            for what, fix in wrong.items():
                message = f"{what}; the cluster goes on without it" if spare else what
                yield Finding(id_, spare, message, fix)
        yield from differences(answered, plan.spec)

    def _session(self, config: Config, host: Host, name: str) -> SSH:
        return SSH(access.door(config, host, name), self.paths, config.key)

    def _on(self, config: Config, host: Host, name: str, do: Callable[[SSH], T]) -> T:
        with self._session(config, host, name) as ssh:
            return do(ssh)


def _left_open(found: Found) -> str:
    """Describe what role firewall would change on a host."""
    ports = sorted(found.ports, key=lambda port: (port[:3], int(port[4:])))
    said = ", ".join(port.replace(":", " ") for port in ports)
    forwarded = ", and what the host forwards" if found.forwards else ""
    return (
        f"the firewall leaves open {said}{forwarded}; to other ports only nodes connect, unless "
        "firewall.open names them"
    )
