"""What of a look is broken, and what a person took out of use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpubed.cluster import condition
from gpubed.cluster.condition import Condition
from gpubed.cluster.watch_memory import Memory
from gpubed.configuration import unfinished
from gpubed.configuration.health import NodeHealth
from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class Fault:
    """Something that is not as it should be; `state` is empty where it is no node."""

    key: str
    node: str
    why: str
    state: str = ""

    @property
    def boots(self) -> bool:
        """Whether it may be a node that boots."""
        return self.state == condition.UNREACHABLE


def faults(found: Condition, cluster: Cluster, memory: Memory) -> list[Fault]:
    """List what `up` would put right; a full disk is nothing of that."""
    listed = [
        Fault(name, name, f"{name} is {state}", state)
        for name, state in found.damaged.items()
        if name not in found.unknown
    ]
    listed += [Fault(f"{one.unit} {one.node}", one.node, one.why) for one in found.stopped]
    head = cluster.allocation.head.name if cluster.allocation.nodes else ""
    listed += [Fault(f"service {name}", head, why) for name, why in found.broken.items()]
    listed += [Fault("links", "", condition.RESHAPED)] if found.reshaped else []
    if memory.unfinished and unfinished.state(cluster.paths) == unfinished.INTERRUPTED:
        why = "the last repair did not come to its end"
        listed.append(Fault("configuration", "", why))
    return listed


def quarantined(
    silent: Collection[str], unwell: Iterable[NodeHealth], memory: Memory
) -> dict[str, str]:
    """Return the nodes that a person took out of use, and why.

    One that does not answer now is known from when it last did. One that took itself out of
    use is broken, and so the more when it does not answer.
    """
    kept = {name: why for name, why in memory.quarantined.items() if name in silent}
    held = {one.node: one.quarantine for one in unwell if one.quarantine}
    return kept | {name: one.reason for name, one in held.items() if one.is_by_hand}


def nodes(faults: Sequence[Fault]) -> list[str]:
    """Return the nodes that faults are of."""
    return sorted({fault.node for fault in faults if fault.node})


def why(faults: Sequence[Fault]) -> str:
    """Return what is broken, in words."""
    return "; ".join(fault.why for fault in faults)
