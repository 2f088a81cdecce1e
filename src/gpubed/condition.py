"""How a cluster is now: its nodes, both networks, its services. Looks only, and in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from gpubed import services
from gpubed.allocation import Allocation, Node
from gpubed.backends.base import Backend
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.ssh import SSH, HostKeyMismatch, greet

UNRECOGNIZED = "unrecognized"
# What `up` makes of it.
_THEN = {
    "missing": "it is made again",
    "stopped": "it is started",
    "paused": "it goes on",
    "unreachable": "it is started again",
    "cut": "it is connected again",
    "unshaped": "its link is shaped again",
}
# Prints what is wrong with a node's experiment network; nothing where nothing is.
_NETWORK = """
PATH=$PATH:/usr/sbin:/sbin
interface=$(ip -oneline -4 address show to %s | awk '{print $2; exit}')
[ "$interface" ] || { echo cut; exit; }
[ -z %s ] || tc qdisc show dev "$interface" | grep -q htb || { echo unshaped; exit; }
ping -q -c 2 -i 0.2 -W 2 %s >/dev/null || echo cut
"""
_AT_ONCE = 16


@dataclass(frozen=True)
class Condition:
    """What was found.

    Attributes:
        nodes: The state of each node by name: ready, or stopped, missing, and what else the
            testbed says; unreachable (SSH does not answer), unrecognized (somebody else's
            host key), cut (of its experiment network), unshaped (its link has no rate).
        services: What is wrong with each service by name; empty where nothing is.
    """

    nodes: dict[str, str]
    services: dict[str, str] = field(default_factory=dict)

    @property
    def damaged(self) -> dict[str, str]:
        """The nodes that are not ready, and how they are."""
        return {name: state for name, state in self.nodes.items() if state != "ready"}

    @property
    def broken(self) -> dict[str, str]:
        """The services that do not answer, and why."""
        return {name: why for name, why in self.services.items() if why}

    @property
    def state(self) -> str:
        """One word for the cluster: ready or degraded."""
        return "degraded" if self.damaged or self.broken else "ready"

    @property
    def words(self) -> list[str]:
        """What is wrong and what `up` does about it, a line each."""
        said = [
            f"{name} is {state}: {_THEN.get(state, 'it is looked at again')}"
            for name, state in self.damaged.items()
        ]
        return said + [f"{why}: its roles are applied again" for why in self.broken.values()]


def look(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, backend: Backend
) -> Condition:
    """Look at everything.

    Nobody logs in to bare nodes, but where the testbed lends a network and a shell with it.
    """
    states = backend.describe(granted)
    shaped = wanted.experiment is not None and backend.shapes_links(wanted.spec)
    looked = partial(_node, cluster, granted, wanted.spec.configure or shaped, shaped)
    up = [node for node in granted.nodes if states[node.name] == "ready"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        states |= dict(zip((n.name for n in up), pool.map(looked, up), strict=True))
    found = Condition(states)
    if wanted.spec.configure and granted.nodes and states[granted.head.name] == "ready":
        return Condition(states, services.answers(cluster, wanted, granted))
    return found


def require(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, backend: Backend
) -> None:
    """Refuse a cluster that is not whole.

    Raises:
        GpubedError: A node or a service is not as it should be.
        HostKeyMismatch: Somebody else answers in a node's place.
    """
    found = look(cluster, wanted, granted, backend)
    recognize(cluster, granted, found)
    if found.damaged:
        listed = ", ".join(f"{name} is {state}" for name, state in found.damaged.items())
        raise GpubedError(
            f"{listed}, and {granted.backend} could not change that",
            "see what its console says; a node that is removed there is made again by "
            f"gpubed up {cluster.name}",
        )
    if found.broken:
        raise GpubedError(
            "; ".join(found.broken.values()), f"gpubed ssh {cluster.name} head journalctl -b"
        )


def recognize(cluster: ClusterPaths, granted: Allocation, found: Condition) -> None:
    """Refuse to go on where somebody else answers: whose key it is, a person decides.

    Raises:
        HostKeyMismatch: Somebody else answers in a node's place.
    """
    for node in granted.nodes:
        if found.nodes[node.name] == UNRECOGNIZED:
            greet(node, cluster)  # its words are more than a state


def _node(
    cluster: ClusterPaths, granted: Allocation, log_in: bool, shaped: bool, node: Node
) -> str:
    if not log_in:
        return "ready"
    try:
        with SSH(node, cluster) as ssh:
            return _network(ssh, node, granted, shaped) or "ready"
    except HostKeyMismatch:
        return UNRECOGNIZED
    except GpubedError:
        return "unreachable"


def _network(ssh: SSH, node: Node, granted: Allocation, shaped: bool) -> str:
    """Ask a node for its part of the experiment network; workers look for the head."""
    if granted.experiment is None or node.experiment_address is None:
        ssh.run("true")
        return ""
    peer = granted.head.experiment_address
    words: Sequence[object] = (node.experiment_address, "yes" if shaped else "", peer)
    return ssh.run(_NETWORK, *words, check=False).stdout.strip()
