"""Probes a cluster's condition within seconds: nodes, disks, networks, services.

`restart_hung` restarts nodes that hang: silent for longer than a boot takes, though ready for the
testbed. It needs a testbed that can restart nodes, and restarts none whose run would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpubed.access import services
from gpubed.cluster.lost_state import Approve
from gpubed.configuration import applied, due, health, jupyterlab_port, roles, systemd
from gpubed.configuration.due import Due
from gpubed.configuration.health import NodeHealth
from gpubed.configuration.roles import Unit
from gpubed.configuration.systemd import Stopped
from gpubed.core import parallel, progress, secret
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import ClusterPaths
from gpubed.jobs.runs import active
from gpubed.nodes import allocation as allocations
from gpubed.nodes import disks, link_rates
from gpubed.nodes.allocation import Allocation, Cluster, Node
from gpubed.nodes.ssh import SSH, HostKeyMismatch, Unreachable, greet, is_hidden, is_silent
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry
from gpubed.testbeds.base import Testbed

UNRECOGNIZED, FULL = "unrecognized", "full"
UNREACHABLE, HIDDEN = "unreachable", "hidden"
AWAY = "away"  # a silent own host, which no testbed can restart
BARE = ("cut", "unshaped")  # such nodes are configured from scratch
# States in which the condition of the node itself is unknown, so that `up` cannot repair it.
_UNKNOWN = {HIDDEN, AWAY}
# What `up` does about each state.
_THEN = {
    "missing": "it is made again",
    "stopped": "it is started",
    "paused": "it is resumed",
    HIDDEN: "a host on the way to it lets no login through",
    AWAY: "only you can check its power, network and sshd",
    UNRECOGNIZED: "its host key is asked for again",
    "cut": "it is connected again",
    "unshaped": "its link is shaped again",
}
NO_WAY = "the network to them may be at fault: check your network, VPN and bastion"
RESHAPED = "links may have another rate than declared, since a `bench` was killed"
# Prints `cut`, `unshaped` or nothing for a node's experiment network. Arguments: the node's
# address, "1" if nodes shape their own links, and the head's address. `ping` exits with 1 if no
# reply came.
_NETWORK = """
PATH=$PATH:/usr/sbin:/sbin
interface=$(ip -oneline -4 address show to %s | awk '{print $2; exit}')
[ "$interface" ] || { echo cut; exit; }
[ ! %s ] || tc qdisc show dev "$interface" | grep -q htb ||
  { echo unshaped; exit; }
peer=%s
[ "$peer" ] || exit 0
ping -q -c 3 -i 0.2 -W 2 "$peer" >/dev/null 2>&1
[ $? != 1 ] || echo cut
"""
# The role of a service, where it has another name.
_ROLES = {services.STATUS: "monitoring"}


@dataclass(frozen=True)
class Condition:
    """The condition of a cluster."""

    # The state of each node by name: ready, stopped, missing, or another state of the testbed; or
    # unreachable (SSH does not answer), hidden (a host on the way to it fails), unrecognized
    # (another host key answers), cut (off its experiment network), unshaped (its link has no rate).
    nodes: dict[str, str]
    services: dict[str, str] = field(default_factory=dict)  # the fault of each service, or ""
    full: dict[str, str] = field(default_factory=dict)  # full disks by node; the nodes are ready
    stopped: tuple[Stopped, ...] = ()  # units that should run on nodes and do not
    reshaped: bool = False  # whether a killed `bench` may have left links with other rates
    unwell: tuple[NodeHealth, ...] = ()  # nodes that jobs leave out, which is no damage
    all_silent: bool = False  # whether no node answers, so that the network to them may be at fault
    when_silent: str = ""  # what `up` does about a node that does not answer; see `Backend`

    @property
    def damaged(self) -> dict[str, str]:
        """The state of each node that is not ready."""
        return {name: state for name, state in self.nodes.items() if state != "ready"}

    def in_state(self, *states: str) -> list[str]:
        """Return the nodes that are in one of these states."""
        return [name for name, state in self.nodes.items() if state in states]

    @property
    def unknown(self) -> dict[str, str]:
        """A sentence for each node whose condition is unknown, and which `up` cannot repair."""
        return {
            name: f"{name} is {state}: {self._then(state)}"
            for name, state in self.damaged.items()
            if self.all_silent or state in _UNKNOWN
        }

    @property
    def broken(self) -> dict[str, str]:
        """The fault of each service that does not answer."""
        return {name: why for name, why in self.services.items() if why}

    @property
    def state(self) -> str:
        """One word for the cluster: ready or degraded."""
        wrong = self.damaged or self.broken or self.full or self.stopped or self.reshaped
        return "degraded" if wrong else "ready"

    @property
    def words(self) -> list[str]:
        """The faults and what `up` does about each, a line each."""
        lines = [f"{name} is {state}: {self._then(state)}" for name, state in self.damaged.items()]
        delete = "only you can decide what to delete"
        lines += [f"{name}: {why}: {delete}" for name, why in self.full.items()]
        lines += [f"{each.why}: role {each.role} is applied there again" for each in self.stopped]
        lines += [f"{RESHAPED}: they get the declared rate back"] if self.reshaped else []
        return lines + [f"{why}: it is set up again and restarted" for why in self.broken.values()]

    def _then(self, state: str) -> str:
        if self.all_silent:
            return f"no node answers, and {NO_WAY}"
        if state == UNREACHABLE:
            return self.when_silent
        return _THEN.get(state, "it is looked at again")


Probed = tuple[Cluster, Condition]


def look(testbed: Testbed, cluster: Cluster, *, before_roles: bool = False) -> Condition:
    """Return the condition of a cluster; probes all nodes at once.

    `before_roles` tells that due roles are applied next: then services are not probed while
    JupyterLab may still have another port than the declared one.
    """
    plan, allocation = cluster.plan, cluster.allocation
    states = testbed.describe(allocation)
    ready = [node for node in allocation.nodes if states.get(node.name) == "ready"]
    units = roles.units(plan) if plan.spec.configure and ready else []
    # If the head does not answer, workers do not ping it.
    peer = allocation.head.experiment_address if ready and allocation.head in ready else ""
    probe_node = partial(_probe, cluster, peer, units, testbed.backend.shapes_on_nodes)
    probed = parallel.each(probe_node, ready)
    by_name = {node.name: result for node, result in zip(ready, probed, strict=True)}
    states |= {name: result.state for name, result in by_name.items()}
    silent = {name for name, result in by_name.items() if result.silent}
    serves = plan.spec.configure and allocation.nodes and states[allocation.head.name] == "ready"
    probes_services = serves and not (before_roles and jupyterlab_port.is_due(cluster))
    return Condition(
        states,
        _answers(cluster, before_roles=before_roles) if probes_services else {},
        {name: result.full for name, result in by_name.items() if result.full},
        _without_due(cluster, [unit for result in probed for unit in result.stopped]),
        link_rates.left_changed(cluster.paths),
        tuple(r.health for r in probed if r.health and r.health.state != "well"),
        not testbed.backend.nodes_are_here and _all_silent(allocation, states, silent),
        testbed.backend.when_silent,
    )


def _answers(cluster: Cluster, *, before_roles: bool) -> dict[str, str]:
    """Return the fault of each service, but for those that are set up next."""
    waiting, head = due.now(cluster) if before_roles else {}, cluster.allocation.head.name
    found = services.answers(cluster).items()
    return {n: fault for n, fault in found if head not in waiting.get(_ROLES.get(n, n), ())}


def require(testbed: Testbed, cluster: Cluster) -> Condition:
    """Return a cluster's condition; raise `GpubedError` if it is damaged.

    Raises `HostKeyMismatch` if another host answers in a node's place.
    """
    found, name, faults, hint = look(testbed, cluster), cluster.name, list[str](), ""
    require_known_keys(cluster, found)
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == HIDDEN:
            greet(node, cluster.paths)  # raises the error of that host
    if found.damaged:
        listed = ", ".join(f"{node} is {state}" for node, state in found.damaged.items())
        faults = [f"{listed}, and {cluster.allocation.backend} could not repair that"]
        hint = made_again(name)
    elif found.full:
        faults = [f"{node}: {why}" for node, why in found.full.items()]
        hint = free(name, next(iter(found.full)))
    elif found.stopped:
        first = found.stopped[0]
        command = "ls -l" if first.unit.startswith("/") else "sudo journalctl -b -u"
        faults = [unit.why for unit in found.stopped]
        hint = f"gpubed ssh {name} {first.node} {command} {first.unit}"
    elif found.broken:
        faults, hint = list(found.broken.values()), f"gpubed ssh {name} head journalctl -b"
    if faults:
        raise GpubedError("; ".join(faults), hint)
    return found


def made_again(cluster: str) -> str:
    """Return the hint for a node that its testbed cannot repair."""
    return f"read its console; `up` replaces a node that you remove there: gpubed up {cluster}"


def free(cluster: str, node: str) -> str:
    """Return the hint for a full disk."""
    return f"free space there: gpubed ssh {cluster} {node}, then gpubed up {cluster}"


def require_known_keys(cluster: Cluster, found: Condition) -> None:
    """Raise `HostKeyMismatch` if another host answers in a node's place.

    Only a person can decide whether to trust its key.
    """
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == UNRECOGNIZED:
            greet(node, cluster.paths)  # raises the error


def before_up(paths: ClusterPaths, plan: ClusterPlan) -> Probed | None:
    """Probe the present nodes before `up`; None if there are none or their list cannot be read.

    Probes them on their own testbed, even if the specification names another one meanwhile.
    """
    try:
        if not secret.public_key(paths.private_key):
            return None  # no login without the key; `up` gives nodes a new one
        allocation = allocations.load(paths.allocation)
    except GpubedError:
        return None  # `up` writes an unreadable file again
    testbed = registry.bound(allocation.backend, paths)
    cluster = Cluster(paths, plan, allocation)
    return cluster, look(testbed, cluster, before_roles=True)


def damaged(probed: Probed | None) -> Probed | None:
    """Return the result of a probe if the cluster is not ready, else None."""
    return probed if probed and probed[1].state != "ready" else None


def prepare_repair(cluster: Cluster, found: Condition) -> None:
    """Mark damaged nodes as not configured and the cluster as not verified.

    Call this only once the costs of the repair are approved.
    """
    # First, because the verification shows that roles were applied.
    bare, stopped = found.in_state(*BARE), unserved(cluster.plan, found)
    applied.forget(cluster.paths, cluster.allocation, bare, stopped)
    cluster.paths.verification.unlink(missing_ok=True)


def unserved(plan: ClusterPlan, found: Condition) -> Due:
    """Return the nodes on which the services of roles do not work, by role."""
    unserved = {_ROLES.get(name, name): list(found.nodes) for name in found.broken}
    for unit in found.stopped:
        unserved.setdefault(unit.role, []).append(unit.node)
    if roles.ENVIRONMENT in unserved:  # other roles' packages in the environment may be lost
        for role in roles.active(plan):
            if "environment" in roles.reads(plan, role):
                unserved[role] = list(found.nodes)
    return unserved


class StaysSilent(GpubedError):
    """A restarted node still does not answer."""


def restart_hung(
    cluster: Cluster,
    found: Condition,
    approve: Approve,
    *,
    spared: Collection[str] = (),
    overdue: Collection[str] = (),
) -> tuple[str, ...]:
    """Restart the nodes that hang, wait until they answer, and return their names.

    Args:
        approve: Called if the network may be at fault instead of the only node.
        spared: Nodes that will be removed anyway.
        overdue: Nodes known to be silent for longer than a boot takes.

    Raises:
        Locked: A run is at work that would be lost with a node.
        UsageError: The restart was not approved.
        StaysSilent: A node does not answer after its restart.
        GpubedError: No node answers, or the testbed could not restart one.
    """
    testbed = registry.bound(cluster.allocation.backend, cluster.paths)
    wanted = {node.name for node in cluster.plan.nodes} - {*spared}
    silent = [
        node
        for node in cluster.allocation.nodes
        if node.name in wanted and found.nodes[node.name] == UNREACHABLE
    ]
    if not silent or not testbed.backend.restarts:
        return ()
    patience = testbed.backend.boots_within_s
    names = [node.name for node in silent]
    if {*names} <= {*overdue}:
        patience = 0.0
    else:
        progress.note(f"{', '.join(names)}: no answer; waiting {patience:g} s, as long as a boot")
    faults = _silence(cluster, silent, patience)
    hung = [node for node in silent if is_silent(node, faults.get(node.name))]
    if not hung:
        return ()
    listed, name = ", ".join(node.name for node in hung), cluster.name
    if found.all_silent and len(hung) == len(silent):
        # The network may be at fault, and restarts would end programs on working nodes.
        if len(hung) > 1:
            raise GpubedError(
                f"no node of {name} answers, and {NO_WAY}",
                f"if they hang, restart one at the testbed; then gpubed up {name} does the rest",
            )
        why = "no node answers; if only the network to it fails, its programs are ended"
        approve([f"restart node {listed}: {why}"])
    if run := active.ends_with_nodes(cluster.paths):
        raise Locked(
            f"{listed}: silent, but not restarted while run {run.run_id} is at work",
            f"wait for its end, or end it: gpubed cancel {name} {run.run_id}",
        )
    by = testbed.backend.name
    progress.note(f"{listed}: silent, and restarted by {by}")
    parallel.each(lambda node: testbed.restart(cluster.allocation, node), hung)
    if still := _silence(cluster, hung, testbed.backend.boots_within_s):
        why = f"{', '.join(still)}: restarted by {by}, but still no login"
        raise StaysSilent(why, made_again(name))
    return tuple(node.name for node in hung)


def _silence(cluster: Cluster, nodes: Sequence[Node], patience: float) -> dict[str, GpubedError]:
    deadline = time.monotonic() + patience

    def fault(node: Node) -> GpubedError | None:
        try:
            with SSH(node, cluster.paths) as ssh:
                ssh.wait_ready(max(0.0, deadline - time.monotonic()))
        except GpubedError as error:
            return error
        return None

    errors = parallel.each(fault, nodes)
    return {node.name: error for node, error in zip(nodes, errors, strict=True) if error}


@dataclass(frozen=True)
class _NodeCondition:
    """The condition of one node; see `Condition`."""

    state: str
    silent: bool = False  # whether the node did not answer, so that its condition is unknown
    full: str = ""
    stopped: Sequence[Stopped] = ()
    health: NodeHealth | None = None


def _probe(
    cluster: Cluster, peer: str | None, units: Sequence[Unit], shaped: bool, node: Node
) -> _NodeCondition:
    try:
        with SSH(node, cluster.paths) as ssh:
            state = _network(ssh, node, peer, shaped) or "ready"
            full = disks.full(disks.look(ssh, cluster.plan.spec.storage.shared.path))
            stopped = systemd.stopped(ssh, node, units)
            asks = health.is_told(cluster.plan)
            answer = health.ask(ssh, cluster.paths, node) if asks else None
            return _NodeCondition(state, False, "; ".join(full), stopped, answer)
    except HostKeyMismatch:
        return _NodeCondition(UNRECOGNIZED)
    except Unreachable as error:
        if is_hidden(node, error):
            return _NodeCondition(HIDDEN, True)
        return _NodeCondition(UNREACHABLE, is_silent(node, error))
    except GpubedError:
        return _NodeCondition(UNREACHABLE)


def _all_silent(allocation: Allocation, states: Mapping[str, str], silent: set[str]) -> bool:
    """Return whether no node answers, so that the network to them may be at fault.

    If there is only one node, a reachable jump host proves that the network works.
    """
    if not states or any(n not in silent and state != AWAY for n, state in states.items()):
        return False
    first = allocation.nodes[0]
    jump_host_works = first.via and not first.is_last_hop and states[first.name] == UNREACHABLE
    return len(states) > 1 or not jump_host_works


def _without_due(cluster: Cluster, stopped: Sequence[Stopped]) -> tuple[Stopped, ...]:
    """Leave out units that are missing because their role has yet to be applied."""
    missing = [unit for unit in stopped if unit.state == systemd.MISSING]
    due_nodes = due.now(cluster) if missing else {}
    early = [unit for unit in missing if unit.node in due_nodes.get(unit.role, ())]
    return tuple(unit for unit in stopped if unit not in early)


def _network(ssh: SSH, node: Node, peer: str | None, shaped: bool) -> str:
    """Return the fault of a node's experiment network, `cut` or `unshaped`; empty if it works.

    Any other answer counts as `cut`, because a state such as `missing` would remove the node.
    """
    if node.experiment_address is None or peer is None:
        ssh.run("true")
        return ""
    words = (node.experiment_address, "1" if shaped else "", peer)
    answer = ssh.run(_NETWORK, *words, check=False).stdout.strip()
    return answer if answer in ("", "cut", "unshaped") else "cut"
