"""How a cluster is now: nodes, disks, networks, services. Looks only, and in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpubed.access import services
from gpubed.configuration import due, health, jupyterlab_port, roles, systemd
from gpubed.configuration.health import NodeHealth
from gpubed.configuration.roles import Unit
from gpubed.configuration.systemd import Stopped
from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.nodes import disks, rates
from gpubed.nodes.allocation import Allocation, Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, HostKeyMismatch, Unreachable, greet, is_hidden, is_silent
from gpubed.testbeds.base import Testbed

UNRECOGNIZED, FULL = "unrecognized", "full"
UNREACHABLE, HIDDEN = "unreachable", "hidden"
AWAY = "away"  # an own host that is silent: its testbed is only that
# Nothing is known of such a node, and no repair changes that.
_UNKNOWN = {HIDDEN, AWAY}
# What `up` makes of it.
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
# Prints what is wrong with a node's experiment network; nothing where nothing is. Where the
# testbed lets nodes shape their own links, each must; `ping` ends with 1 when nobody answers.
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


@dataclass(frozen=True)
class Condition:
    """What was found.

    Attributes:
        nodes: The state of each node by name: ready, or stopped, missing, and what else the
            testbed says; unreachable (SSH does not answer), hidden (a host on the way to it fails),
            unrecognized (somebody else's host key), cut (of its experiment network), unshaped (its
            link has no rate).
        services: What is wrong with each service by name; empty where nothing is.
        full: What is full of a node's disks by its name, in words; such a node is ready.
        stopped: What should run on nodes and does not.
        reshaped: Whether links may have another rate than declared, and nobody is at work on that.
        unwell: Nodes that jobs leave out, and why; that is no damage.
        unheard: Whether no node answers, so that the way to them may be what fails.
        when_silent: What `up` does about a node that does not answer; see `Backend`.
    """

    nodes: dict[str, str]
    services: dict[str, str] = field(default_factory=dict)
    full: dict[str, str] = field(default_factory=dict)
    stopped: tuple[Stopped, ...] = ()
    reshaped: bool = False
    unwell: tuple[NodeHealth, ...] = ()
    unheard: bool = False
    when_silent: str = ""

    @property
    def damaged(self) -> dict[str, str]:
        """The nodes that are not ready, and how they are."""
        return {name: state for name, state in self.nodes.items() if state != "ready"}

    @property
    def unknown(self) -> dict[str, str]:
        """The nodes of which nobody can tell how they are, in words; `up` can do nothing there."""
        return {
            name: f"{name} is {state}: {self._then(state)}"
            for name, state in self.damaged.items()
            if self.unheard or state in _UNKNOWN
        }

    @property
    def broken(self) -> dict[str, str]:
        """The services that do not answer, and why."""
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


def look(testbed: Testbed, cluster: Cluster, *, before_roles: bool = False) -> Condition:
    """Look at everything at once.

    Args:
        before_roles: Roles that are due come next. Their services are not asked, which may be
            elsewhere than is declared by now.
    """
    plan, allocation = cluster.plan, cluster.allocation
    states = testbed.describe(allocation)
    there = [node for node in allocation.nodes if states.get(node.name) == "ready"]
    units = roles.units(plan) if plan.spec.configure and there else []
    # Without a head that answers, no worker is asked whether it reaches it.
    peer = allocation.head.experiment_address if there and allocation.head in there else ""
    see = partial(_node, cluster, peer, units, testbed.backend.shapes_on_nodes)
    looked = parallel.each(see, there)
    states |= {node.name: found.state for node, found in zip(there, looked, strict=True)}
    silent = {node.name for node, found in zip(there, looked, strict=True) if found.silent}
    unheard = not testbed.backend.nodes_are_here and _is_unheard(allocation, states, silent)
    full = {node.name: found.full for node, found in zip(there, looked, strict=True) if found.full}
    stopped = _set_up(cluster, [one for found in looked for one in found.stopped])
    serves = plan.spec.configure and allocation.nodes and states[allocation.head.name] == "ready"
    asked = serves and not (before_roles and jupyterlab_port.is_due(cluster))
    answers = services.answers(cluster) if asked else {}
    unwell = [one.health for one in looked if one.health and one.health.state != "well"]
    return Condition(
        states,
        answers,
        full,
        tuple(stopped),
        rates.left_changed(cluster.paths),
        tuple(unwell),
        unheard,
        testbed.backend.when_silent,
    )


def require(testbed: Testbed, cluster: Cluster) -> Condition:
    """Refuse a cluster that is not whole; return how it is.

    Raises:
        GpubedError: A node, a disk or a service is not as it should be.
        HostKeyMismatch: Somebody else answers in a node's place.
    """
    found = look(testbed, cluster)
    recognize(cluster, found)
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == HIDDEN:
            greet(node, cluster.paths)  # what is on the way says more, too
    if found.damaged:
        listed = ", ".join(f"{name} is {state}" for name, state in found.damaged.items())
        raise GpubedError(
            f"{listed}, and {cluster.allocation.backend} could not change that",
            made_again(cluster.name),
        )
    if found.full:
        listed = "; ".join(f"{name}: {why}" for name, why in found.full.items())
        raise GpubedError(listed, free(cluster.name, next(iter(found.full))))
    if found.stopped:
        first = found.stopped[0]
        tells = "ls -l" if first.unit.startswith("/") else "sudo journalctl -b -u"
        raise GpubedError(
            "; ".join(one.why for one in found.stopped),
            f"gpubed ssh {cluster.name} {first.node} {tells} {first.unit}",
        )
    if found.broken:
        raise GpubedError(
            "; ".join(found.broken.values()), f"gpubed ssh {cluster.name} head journalctl -b"
        )
    return found


def made_again(cluster: str) -> str:
    """Say what to do about a node that its testbed cannot bring back."""
    return (
        "see what its console says; a node that is removed there is made again by "
        f"gpubed up {cluster}"
    )


def free(cluster: str, node: str) -> str:
    """Say what to do where a disk is full."""
    return f"free space there: gpubed ssh {cluster} {node}, then gpubed up {cluster}"


def recognize(cluster: Cluster, found: Condition) -> None:
    """Refuse to go on where somebody else answers: whose key it is, a person decides.

    Raises:
        HostKeyMismatch: Somebody else answers in a node's place.
    """
    for node in cluster.allocation.nodes:
        if found.nodes[node.name] == UNRECOGNIZED:
            greet(node, cluster.paths)  # its words are more than a state


@dataclass(frozen=True)
class _Looked:
    """What one look at a node found; see `Condition`.

    Attributes:
        silent: Whether nobody answered, so that nothing is known of the node.
    """

    state: str
    silent: bool = False
    full: str = ""
    stopped: Sequence[Stopped] = ()
    health: NodeHealth | None = None


def _node(
    cluster: Cluster,
    peer: str | None,
    units: Sequence[Unit],
    shaped: bool,
    node: Node,
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
    """Say whether no node answers, so that the way to them may be what fails.

    Where there is only one, a host on the way that lets us through to it vouches for the way.
    """
    heard = [name for name, state in states.items() if name not in silent and state != AWAY]
    if heard or not states:
        return False
    first = allocation.nodes[0]
    vouched = first.via and not first.is_own_door and states[first.name] == UNREACHABLE
    return len(states) > 1 or not vouched


def _set_up(cluster: Cluster, stopped: Sequence[Stopped]) -> list[Stopped]:
    """Leave out what is missing where its role has yet to be applied: that is no damage."""
    if not any(one.state == systemd.MISSING for one in stopped):
        return list(stopped)
    yet = due.now(cluster)
    return [
        one
        for one in stopped
        if one.state != systemd.MISSING or one.node not in yet.get(one.role, ())
    ]


def _network(ssh: SSH, node: Node, peer: str | None, shaped: bool) -> str:
    """Ask a node for its part of the experiment network; workers look for the head, if any.

    One that says something else cannot be relied on, and what it says is no state: some of them
    let a repair remove a node.
    """
    if node.experiment_address is None or peer is None:
        ssh.run("true")
        return ""
    words = (node.experiment_address, "1" if shaped else "", peer)
    said = ssh.run(_NETWORK, *words, check=False).stdout.strip()
    return said if said in ("", "cut", "unshaped") else "cut"
