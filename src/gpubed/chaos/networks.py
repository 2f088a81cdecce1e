"""Networks that are cut, and links that are slow or lose packets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpubed.chaos.scenario import Ground, Held, Scenario, Status, Unfit
from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.units import format_rate
from gpubed.nodes import answers, rates
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.testbeds.breaker import Harm

_SLOWER = 10
_LOSS_PERCENT = 5
_PINGS = 300
_LOSS = re.compile(r"([0-9.]{1,20})% packet loss")
# Before the firewall, and in a table of its own, which goes as a whole; one that was killed may
# have left it.
_TABLE = "inet gpubed_chaos"
_LOSE = """
set -e
interface=$(ip -oneline -4 address show to {address} | awk '{{ print $2; exit }}')
nft delete table {table} 2>/dev/null || true
nft add table {table}
nft add chain {table} arriving '{{ type filter hook input priority -310; }}'
nft add rule {table} arriving iifname "$interface" numgen random mod 100 '<' {percent} drop
"""
_LOSE_NOTHING = f"nft delete table {_TABLE} 2>/dev/null || true"
# What a stream carries for a while, in bit/s, once it has begun.
_TAKE = """
import socket, time
with socket.create_server(("%s", %d)) as server:
    server.settimeout(20)
    print("waits", flush=True)
    stream = server.accept()[0]
    stream.settimeout(20)
    stream.recv(1)
    taken, began = 0, time.monotonic()
    while (now := time.monotonic()) - began < 3 and (part := stream.recv(65536)):
        taken += len(part)
print(taken * 8 / (time.monotonic() - began))
"""
_GIVE = """
import socket, time
for _ in range(50):
    try:
        stream = socket.create_connection(("%s", %d), 20)
        break
    except ConnectionRefusedError:
        time.sleep(0.2)
try:
    while True:
        stream.sendall(bytes(65536))
except OSError:
    pass
"""
_PORT = 29517


class CutControl(Scenario):
    """A node that nobody can reach from outside."""

    name = "cut-control"
    does = "it loses the control network, and goes on with the other nodes"
    seen_as = frozenset({"cut"})

    def harm(self) -> Harm:
        """Cut it off the control network."""
        return self.ground.breaker.cut(self.node, "control")


class _OfExperiment(Scenario):
    """A scenario of the experiment network."""

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the nodes that are on it, where there are several."""
        found = [node for node in ground.cluster.allocation.nodes if node.experiment_address]
        if len(found) < 2:
            raise Unfit("it has no experiment network between two nodes")
        return found

    @property
    def _peer(self) -> Node:
        return next(node for node in type(self).nodes(self.ground) if node != self.node)


class CutExperiment(_OfExperiment):
    """A node whose ranks reach nobody."""

    name = "cut-experiment"
    does = "it loses the experiment network, on which ranks speak with each other"
    seen_as = frozenset({"cut"})

    def harm(self) -> Harm:
        """Cut it off the experiment network."""
        return self.ground.breaker.cut(self.node, "experiment")


class SlowLink(_OfExperiment):
    """A link that is slower than declared."""

    name = "slow-link"
    does = "its link to the experiment network has a tenth of its rate"
    holds = (
        "the link carries no more than that, measured",
        "no job and no campaign begins on it",
        "afterwards it carries what was declared, measured",
    )
    seen_as = frozenset({"ready"})
    by_itself = True

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the nodes that hold their links to a rate."""
        network = ground.cluster.allocation.experiment
        if not (network and network.rate_bps):
            raise Unfit("its links have no declared rate")
        return super().nodes(ground)

    @property
    def _declared(self) -> int:
        network = self.ground.cluster.allocation.experiment
        return (network and network.rate_bps) or 0

    def harm(self) -> Harm:
        """Give its link another rate, as `gpubed bench` does: who is killed leaves it to `up`."""
        paths = self.ground.cluster.paths
        links = rates.Links(paths, self.ground.cluster.allocation)

        def undo() -> None:
            if record.read(paths).reshaped and (faults := links.restore()):
                raise GpubedError("; ".join(faults), f"gpubed up {paths.name}")

        slow = self._declared // _SLOWER
        return Harm(lambda: links.hold([self.node], slow), undo, f"gpubed up {paths.name}")

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that it is slow, and that nobody measures on it unawares."""
        yield from super().meanwhile(status)
        carried = _carried(self.ground, self._peer, self.node)
        yield Held(
            f"{self.node.name}'s link is slow",
            0 < carried < 2 * self._declared / _SLOWER,
            f"it carries {format_rate(carried)}",
        )
        yield Held("no job begins on it", record.read(self.ground.cluster.paths).reshaped)

    def afterwards(self) -> Iterator[Held]:
        """Check that it is as fast as before."""
        carried = _carried(self.ground, self._peer, self.node)
        yield Held(
            f"{self.node.name}'s link is as fast as declared",
            carried > 0.7 * self._declared,
            f"it carries {format_rate(carried)} of {format_rate(self._declared)}",
        )


class LossyLink(_OfExperiment):
    """A link that loses packets."""

    name = "lossy-link"
    does = f"it loses {_LOSS_PERCENT} % of what arrives on the experiment network"
    holds = ("packets are lost, counted", "afterwards none is, but for a few while a job runs")
    seen_as = frozenset({"ready"})
    by_itself = True

    def harm(self) -> Harm:
        """Drop packets by chance, before the firewall: netem is no part of some kernels."""
        lose = _LOSE.format(
            address=self.node.experiment_address, table=_TABLE, percent=_LOSS_PERCENT
        )
        return self.ground.breaker.scripted(self.node, lose, _LOSE_NOTHING)

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that packets are lost."""
        yield from super().meanwhile(status)
        lost = self._lost()
        yield Held("packets are lost", 0 < lost < 5 * _LOSS_PERCENT, f"{lost:g} % are")

    def afterwards(self) -> Iterator[Held]:
        """Check that none is lost."""
        lost = self._lost()
        # A job that fills the link loses some by itself: the queue of a shaped link has an end.
        most = _LOSS_PERCENT / 5 if runlock.measurer(self.ground.cluster.paths.state) else 0
        yield Held("no more packets are lost", lost <= most, f"{lost:g} % are")

    def _lost(self) -> float:
        """Return how many packets from another node and back are lost, in percent."""
        with SSH(self._peer, self.ground.cluster.paths) as ssh:
            asked = f"sudo -n ping -q -c {_PINGS} -i 0.01 -W 1 %s"
            done = ssh.run(asked, self.node.experiment_address, check=False)
            told = answers.of(ssh, "ping", done)
        found = _LOSS.search(told.text)
        return told.part(found[1]).number() if found else 100.0


def _carried(ground: Ground, giver: Node, taker: Node) -> float:
    """Return what a stream from one node to another carries, in bit/s."""
    where = (taker.experiment_address, _PORT)
    with SSH(giver, ground.cluster.paths) as gives, SSH(taker, ground.cluster.paths) as takes:
        with ThreadPoolExecutor(2) as pool:
            taken = pool.submit(takes.run, "python3 -c %s", _TAKE % where)
            pool.submit(gives.run, "timeout 30 python3 -c %s", _GIVE % where, check=False)
        told = answers.of(takes, "what arrived", taken.result())
        _, _, last = told.text.strip().rpartition("\n")
        return told.part(last).number()
