"""Reads a cluster's condition within seconds: nodes, disks, networks, services.

`restart_hung` restarts nodes that hang: silent for longer than a boot, though the testbed calls
them ready. Only testbeds that can restart nodes do so, and never while a run would be lost with a
node.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpubed.access import services
from gpubed.cluster.lost_state import Approve
from gpubed.configuration import (
    applied,
    due,
    health,
    jupyterlab_port,
    roles,
    systemd,
)
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
AWAY = "away"  # an own host that is silent: no testbed can bring it back
BARE = ("cut", "unshaped")  # such nodes are configured from scratch
# The condition of such a node is unknown, and no repair helps.
_UNKNOWN = {HIDDEN, AWAY}
# What `up` does about each state.
_THEN = {
    "missing": "it is made again",
    "stopped": "it is started",
    "paused": "it goes on",
    HIDDEN: "what is on the way to it does not let us through",
    AWAY: "only you can see to its power, network and sshd",
    UNRECOGNIZED: "its host key is asked for again",
    "cut": "it is connected again",
    "unshaped": "its link is shaped again",
}
NO_WAY = "the way to them may be what fails: see to your network, VPN and bastion"
RESHAPED = "links may have another rate than declared, since a `bench` was killed"
# Prints what is wrong with a node's experiment network, or nothing. If the testbed lets nodes
# shape their own links, each must have done so. `ping` exits with 1 if no reply came.
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


# The role of each service.
_ROLES = {"jupyterlab": "jupyterlab", services.STATUS: "monitoring"}


@dataclass(frozen=True)
class Condition:
    """The condition of a cluster."""

    # The state of each node by name: ready, stopped, missing, or another state of the testbed; or
    # unreachable (SSH does not answer), hidden (a host on the way to it fails), unrecognized
    # (another host key answers), cut (off its experiment network), unshaped (its link has no rate).
    nodes: dict[str, str]
    services: dict[str, str] = field(default_factory=dict)  # what is wrong, if anything is
    full: dict[str, str] = field(default_factory=dict)  # full disks of a node, which is ready
    stopped: tuple[Stopped, ...] = ()  # units that should run on nodes and do not
    reshaped: bool = False  # whether a killed `bench` may have left links with other rates
    unwell: tuple[NodeHealth, ...] = ()  # nodes that jobs leave out; no damage
    unheard: bool = False  # whether no node answers, so that the network to them may be at fault
    when_silent: str = ""  # what `up` does about a node that does not answer; see `Backend`

    @property
    def damaged(self) -> dict[str, str]:
        """The state of each node that is not ready."""
        return {name: state for name, state in self.nodes.items() if state != "ready"}

    def those(self, *states: str) -> list[str]:
        """Return the nodes that are in one of these states."""
        return [name for name, state in self.nodes.items() if state in states]

    @property
    def unknown(self) -> dict[str, str]:
        """A sentence for each node whose condition is unknown, and which `up` cannot repair."""
        return {
            name: f"{name} is {state}: {self._then(state)}"
            for name, state in self.damaged.items()
            if self.unheard or state in _UNKNOWN
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
        """What is wrong and what `up` does about it, a line each."""
        said = [f"{name} is {state}: {self._then(state)}" for name, state in self.damaged.items()]
        said += [f"{name}: {why}: only you know what may go" for name, why in self.full.items()]
        said += [f"{one.why}: role {one.role} is applied there again" for one in self.stopped]
        said += [f"{RESHAPED}: they get it back"] if self.reshaped else []
        return said + [f"{why}: it is set up again and restarted" for why in self.broken.values()]

    def _then(self, state: str) -> str:
        if self.unheard:
            return f"no node answers, and {NO_WAY}"
        if state == UNREACHABLE:
            return self.when_silent
        return _THEN.get(state, "it is looked at again")


Seen = tuple[Cluster, Condition]


def look(testbed: Testbed, cluster: Cluster, *, before_roles: bool = False) -> Condition:
    """Return the condition of a cluster; all nodes are asked at once.

    If due roles are applied next (`before_roles`), JupyterLab's port may not be the declared one
    yet, and services are not asked then.
    """
    plan, allocation = cluster.plan, cluster.allocation
    states = testbed.describe(allocation)
    there = [node for node in allocation.nodes if states.get(node.name) == "ready"]
    units = roles.units(plan) if plan.spec.configure and there else []
    # If the head does not answer, workers are not asked whether they reach it.
    peer = allocation.head.experiment_address if there and allocation.head in there else ""
    see = partial(_node, cluster, peer, units, testbed.backend.shapes_on_nodes)
    looked = dict(zip((node.name for node in there), parallel.each(see, there), strict=True))
    states |= {name: found.state for name, found in looked.items()}
    silent = {name for name, found in looked.items() if found.silent}
    serves = plan.spec.configure and allocation.nodes and states[allocation.head.name] == "ready"
    asked = serves and not (before_roles and jupyterlab_port.is_due(cluster))
    health = [found.health for found in looked.values() if found.health]
    return Condition(
        states,
        services.answers(cluster) if asked else {},
        {name: found.full for name, found in looked.items() if found.full},
        _set_up(cluster, [one for found in looked.values() for one in found.stopped]),
        link_rates.left_changed(cluster.paths),
        tuple(one for one in health if one.state != "well"),
        not testbed.backend.nodes_are_here and _is_unheard(allocation, states, silent),
        testbed.backend.when_silent,
    )


def require(testbed: Testbed, cluster: Cluster) -> Condition:
    """Return a cluster's condition, and refuse one that is damaged.

    Raises `HostKeyMismatch` if another host answers in a node's place.
    """
    found, name, said, hint = look(testbed, cluster), cluster.name, list[str](), ""
    require_known_keys(cluster, found)
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == HIDDEN:
            greet(node, cluster.paths)  # the error of the host on the way says more
    if found.damaged:
        listed = ", ".join(f"{node} is {state}" for node, state in found.damaged.items())
        said = [f"{listed}, and {cluster.allocation.backend} could not change that"]
        hint = made_again(name)
    elif found.full:
        said = [f"{node}: {why}" for node, why in found.full.items()]
        hint = free(name, next(iter(found.full)))
    elif found.stopped:
        first = found.stopped[0]
        tells = "ls -l" if first.unit.startswith("/") else "sudo journalctl -b -u"
        said = [one.why for one in found.stopped]
        hint = f"gpubed ssh {name} {first.node} {tells} {first.unit}"
    elif found.broken:
        said, hint = list(found.broken.values()), f"gpubed ssh {name} head journalctl -b"
    if said:
        raise GpubedError("; ".join(said), hint)
    return found


def made_again(cluster: str) -> str:
    """Return what to do about a node that its testbed cannot bring back."""
    return (
        f"see what its console says; a node that is removed there comes again: gpubed up {cluster}"
    )


def free(cluster: str, node: str) -> str:
    """Return what to do about a full disk."""
    return f"free space there: gpubed ssh {cluster} {node}, then gpubed up {cluster}"


def require_known_keys(cluster: Cluster, found: Condition) -> None:
    """Refuse to go on if another host key answers: only a person can decide whether to trust it.

    Raises `HostKeyMismatch` if another host answers in a node's place.
    """
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == UNRECOGNIZED:
            greet(node, cluster.paths)  # its error says more than a state


def before_up(paths: ClusterPaths, plan: ClusterPlan) -> Seen | None:
    """Look at the present nodes before `up`; None if there are none or they cannot be read.

    They are looked at on their own testbed, even if the specification names another one by now.
    """
    try:
        if not secret.public_key(paths.private_key):
            return None  # no login without the key, which is exchanged like a changed one
        allocation = allocations.load(paths.allocation)
    except GpubedError:
        return None  # an unreadable file is written again
    testbed = registry.bound(allocation.backend, paths)
    cluster = Cluster(paths, plan, allocation)
    return cluster, look(testbed, cluster, before_roles=True)


def damaged(seen: Seen | None) -> Seen | None:
    """Return the result of a look if the cluster is not ready, else None."""
    return seen if seen and seen[1].state != "ready" else None


def prepare_repair(cluster: Cluster, found: Condition) -> None:
    """Mark damaged nodes as not configured and the cluster as not verified.

    Call this only once the costs of the repair are approved.
    """
    # Before the verification is removed, which shows that roles were applied.
    lost, stopped = found.those(*BARE), unserved(cluster.plan, found)
    applied.forget(cluster.paths, cluster.allocation, lost, stopped)
    cluster.paths.verification.unlink(missing_ok=True)


def unserved(plan: ClusterPlan, found: Condition) -> Due:
    """Return the nodes on which roles' services do not work, by role."""
    unserved = {_ROLES[name]: list(found.nodes) for name in found.broken}
    for one in found.stopped:
        unserved.setdefault(one.role, []).append(one.node)
    if roles.ENVIRONMENT in unserved:  # packages installed into it may be lost with it
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
    given_time: Collection[str] = (),
) -> tuple[str, ...]:
    """Restart the nodes that hang, wait until they answer, and return their names.

    `approve` is called where the network may be at fault instead of the node. Nodes `spared` will
    be removed anyway, and those `given_time` have been silent for as long as a boot takes. Raises
    `Locked` if a run that would be lost with a node is at work, `UsageError` if a restart was not
    approved, `StaysSilent` if a node does not answer after its restart, `GpubedError` if no node
    answers, or the testbed could not restart one.
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
    if {*names} <= {*given_time}:
        patience = 0.0
    else:
        message = f"{', '.join(names)}: no answer; a node that boots has {patience:g} s to give one"
        progress.emit("note", message=message)
    faults = _silence(cluster, silent, patience)
    hung = [node for node in silent if is_silent(node, faults.get(node.name))]
    if not hung:
        return ()
    listed, name = ", ".join(node.name for node in hung), cluster.name
    if found.unheard and len(hung) == len(silent):
        # The network may be at fault, and restarts would end what runs on nodes that work.
        if len(hung) > 1:
            raise GpubedError(
                f"no node of {name} answers, and {NO_WAY}",
                f"where they hang, restart one there; then gpubed up {name} does the rest",
            )
        why = "no node answers, and where it works all the same, what runs on it ends"
        approve([f"restart node {listed}: {why}"])
    if run := active.ends_with_nodes(cluster.paths):
        raise Locked(
            f"{listed}: silent, and not restarted while run {run.run_id} is at work",
            f"wait for its end, or end it: gpubed cancel {name} {run.run_id}",
        )
    by = testbed.backend.name
    progress.emit("note", message=f"{listed}: silent, and restarted by {by}")
    parallel.each(lambda node: testbed.restart(cluster.allocation, node), hung)
    if still := _silence(cluster, hung, testbed.backend.boots_within_s):
        raise StaysSilent(
            f"{', '.join(still)}: restarted by {by}, and not to be logged in to all the same",
            made_again(name),
        )
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

    said = parallel.each(fault, nodes)
    return {node.name: error for node, error in zip(nodes, said, strict=True) if error}


@dataclass(frozen=True)
class _Looked:
    """The condition of one node; see `Condition`."""

    state: str
    silent: bool = False  # whether the node did not answer at all, so that its condition is unknown
    full: str = ""
    stopped: Sequence[Stopped] = ()
    health: NodeHealth | None = None


def _node(
    cluster: Cluster, peer: str | None, units: Sequence[Unit], shaped: bool, node: Node
) -> _Looked:
    try:
        with SSH(node, cluster.paths) as ssh:
            state = _network(ssh, node, peer, shaped) or "ready"
            full = disks.full(disks.look(ssh, cluster.plan.spec.storage.shared.path))
            stopped = systemd.stopped(ssh, node, units)
            told = health.ask(ssh, cluster.paths, node) if health.is_told(cluster.plan) else None
            return _Looked(state, False, "; ".join(full), stopped, told)
    except HostKeyMismatch:
        return _Looked(UNRECOGNIZED)
    except Unreachable as error:
        if is_hidden(node, error):
            return _Looked(HIDDEN, True)
        return _Looked(UNREACHABLE, is_silent(node, error))
    except GpubedError:
        return _Looked(UNREACHABLE)


def _is_unheard(allocation: Allocation, states: Mapping[str, str], silent: set[str]) -> bool:
    """Return whether no node answers, so that the network to them may be at fault.

    If there is only one node, a reachable jump host proves that the network works.
    """
    heard = [name for name, state in states.items() if name not in silent and state != AWAY]
    if heard or not states:
        return False
    first = allocation.nodes[0]
    vouched = first.via and not first.is_last_hop and states[first.name] == UNREACHABLE
    return len(states) > 1 or not vouched


def _set_up(cluster: Cluster, stopped: Sequence[Stopped]) -> tuple[Stopped, ...]:
    """Leave out units that are missing because their role has yet to be applied."""
    missing = [one for one in stopped if one.state == systemd.MISSING]
    yet = due.now(cluster) if missing else {}
    early = [one for one in missing if one.node in yet.get(one.role, ())]
    return tuple(one for one in stopped if one not in early)


def _network(ssh: SSH, node: Node, peer: str | None, shaped: bool) -> str:
    """Return what is wrong with a node's experiment network; empty if nothing is.

    Any other answer counts as `cut`: with some states, a repair would remove the node.
    """
    if node.experiment_address is None or peer is None:
        ssh.run("true")
        return ""
    words = (node.experiment_address, "1" if shaped else "", peer)
    said = ssh.run(_NETWORK, *words, check=False).stdout.strip()
    return said if said in ("", "cut", "unshaped") else "cut"
