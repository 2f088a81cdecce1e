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

    The other nodes keep 0 slots: a job starts from the head even if the head runs no ranks.

    Args:
        allocation: The nodes that jobs may use, head first.
        nodes: The number of nodes, counted from the first.
        ranks: The number of ranks; each node is filled before the next.
        on: Names of nodes; `head` also names the head.
    """
    if (nodes, ranks, tuple(on)) == (None, None, ()):
        return allocation
    if sum(option is not None for option in (nodes, ranks, on or None)) > 1:
        raise UsageError("--nodes, --ranks and --on exclude each other", "give one of them")
    if not allocation.nodes:
        raise UsageError(
            f"{allocation.backend} runs jobs and lends no nodes to choose from",
            "nodes in cluster.yml says how large a job is",
        )
    able = {node.name: node.slots for node in allocation.with_ranks}
    if on:
        slots = _named(allocation, able, on)
    elif nodes is not None:
        _require(allocation, nodes, len(able), "node(s)")
        slots = dict(list(able.items())[:nodes])
    else:
        left = ranks or 0
        _require(allocation, left, sum(able.values()), "rank(s)")
        slots = {}
        for name, most in able.items():
            slots[name] = min(most, left)
            left -= slots[name]
    chosen = (n.model_copy(update={"slots": slots.get(n.name, 0)}) for n in allocation.nodes)
    return allocation.model_copy(update={"nodes": tuple(chosen)})


def _named(allocation: Allocation, able: Mapping[str, int], on: Iterable[str]) -> dict[str, int]:
    names = [allocation.head.name if name == "head" else name for name in on]
    for name in names:
        if name not in able:
            raise UsageError(
                f"cluster {allocation.cluster} has no node {name!r} that jobs may use",
                f"nodes that jobs may use: {', '.join(able)}; why others are left out: "
                f"gpubed health {allocation.cluster}",
            )
    return {name: able[name] for name in names}


def _require(allocation: Allocation, count: int, most: int, what: str) -> None:
    if not 0 < count <= most:
        raise UsageError(
            f"{count} {what} were asked for; cluster {allocation.cluster} has 1 to {most}",
            f"gpubed health {allocation.cluster} tells which nodes jobs may use",
        )
