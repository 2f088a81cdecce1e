"""Selects a job's nodes: the first N, as many as N ranks need, or by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubed.core.errors import UsageError
from gpubed.nodes.allocation import Allocation


def choose(
    allocation: Allocation,
    *,
    nodes: int | None = None,
    ranks: int | None = None,
    on: Sequence[str] = (),
) -> Allocation:
    """Return an allocation with slots for ranks on the selected nodes only.

    The other nodes stay in it with 0 slots, because a job starts from the head even if the head
    runs no ranks.

    Args:
        allocation: The nodes that jobs may use, head first.
        nodes: The number of nodes, counted from the first.
        ranks: The number of ranks; each node is filled before the next.
        on: Names of nodes; `head` also names the head.
    """
    if (nodes, ranks, tuple(on)) == (None, None, ()):
        return allocation
    if sum(asked is not None for asked in (nodes, ranks, on or None)) > 1:
        raise UsageError("--nodes, --ranks and --on exclude each other", "give one of them")
    if not allocation.nodes:
        raise UsageError(
            f"{allocation.backend} runs jobs and lends no nodes to choose from",
            "nodes in cluster.yml says how large a job is",
        )
    if on:
        return _with_slots(allocation, _named(allocation, on))
    if nodes is not None:
        return _with_slots(allocation, _first(allocation, nodes))
    return _with_slots(allocation, _filled(allocation, ranks or 0))


def _with_slots(allocation: Allocation, slots: Mapping[str, int]) -> Allocation:
    chosen = (n.model_copy(update={"slots": slots.get(n.name, 0)}) for n in allocation.nodes)
    return allocation.model_copy(update={"nodes": tuple(chosen)})


def _named(allocation: Allocation, on: Iterable[str]) -> dict[str, int]:
    able = {node.name: node.slots for node in allocation.with_ranks}
    listed = f"nodes that jobs may use: {', '.join(able)}"
    names = [allocation.head.name if name == "head" else name for name in on]
    for name in names:
        if name not in able:
            raise UsageError(
                f"cluster {allocation.cluster} has no node {name!r} that jobs may use",
                f"{listed}; why others are left out: gpubed health {allocation.cluster}",
            )
    return {name: able[name] for name in names}


def _first(allocation: Allocation, count: int) -> dict[str, int]:
    able = allocation.with_ranks
    _require(allocation, count, len(able), "node(s)")
    return {node.name: node.slots for node in able[:count]}


def _filled(allocation: Allocation, count: int) -> dict[str, int]:
    able = allocation.with_ranks
    _require(allocation, count, sum(node.slots for node in able), "rank(s)")
    filled = {}
    for node in able:
        filled[node.name] = min(node.slots, count)
        count -= filled[node.name]
    return filled


def _require(allocation: Allocation, count: int, most: int, what: str) -> None:
    if not 0 < count <= most:
        raise UsageError(
            f"{count} {what} were asked for; cluster {allocation.cluster} has 1 to {most}",
            f"gpubed health {allocation.cluster} tells which nodes jobs may use",
        )
