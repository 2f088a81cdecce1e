"""Names what is wrong in a rehearsal: what its points measured, against each other and predictions.

A formula sees none of it: jobs on another network, fusion that is off, a slow node, processors
that are too busy to stand for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from gpubed.campaigns.predictions import Foretold
from gpubed.campaigns.records import Record

_SLOW = 1.1  # times the others' median
_LATE = 1.05  # times what was asked for


def found(
    points: Iterable[Record], foretold: Mapping[str, Foretold], subnet: str | None
) -> list[str]:
    """Return a sentence for each fault, the gravest first.

    Args:
        points: Repetitions that ended well; those on one rank tell nothing here.
        foretold: Predictions by the points' ids.
        subnet: The experiment network's; None if it is not known.
    """
    several = [one for one in points if one.figures.get("world_size", 0) > 1]
    named = [
        *_by_network(several, subnet),
        *_by_fusion(several, foretold),
        *_by_node(several),
        *_by_processors(several),
    ]
    return named or list(_slower(several, foretold))


def _worst(
    points: list[Record], share: Callable[[Record], float], least: float
) -> tuple[Record, str] | None:
    """Return the point with the largest share, and how many reach `least`, if any does."""
    over = [one for one in points if share(one) > least]
    count = f"{len(over)} of {len(points)} points on several nodes"
    return (max(over, key=share), count) if over else None


def _by_network(points: list[Record], subnet: str | None) -> Iterator[str]:
    def outside(point: Record) -> float:
        address = point.metrics.get("address")
        return bool(subnet and address and ip_address(address) not in ip_network(subnet))

    if worst := _worst(points, outside, 0):
        one, count = worst
        yield (
            f"Wrong network at {count}: gradients went over {one.metrics.get('interface')} "
            f"({one.metrics['address']}), which is not on the experiment network {subnet}. "
            "What sets it: horovod_interface in group_vars or host_vars, HOROVOD_GLOO_IFACE."
        )


def _by_fusion(points: list[Record], foretold: Mapping[str, Foretold]) -> Iterator[str]:
    def unfused(point: Record) -> float:
        return point.figures.get("fused_mb", 1) < 1

    if worst := _worst(points, unfused, 0):
        one, count = worst
        yield (
            f"Fusion is off at {count} (at most {one.figures['fused_mb']:g} MiB travel together): "
            f"each tensor is averaged by itself; a step takes {_against(one, foretold)}. "
            "What sets it: fusion_mb, horovod_fusion_mb in group_vars, HOROVOD_FUSION_THRESHOLD."
        )


def _against(point: Record, foretold: Mapping[str, Foretold]) -> str:
    step, told = point.figures.get("step_s", 0.0), foretold.get(point.id)
    if told is None:
        return f"{1000 * step:.0f} ms"
    more = step / told.step_s - 1
    return f"{1000 * step:.0f} ms, {abs(more):.0%} {'more' if more > 0 else 'less'} than predicted"


def _by_node(points: list[Record]) -> Iterator[str]:
    if worst := _worst(points, lambda one: one.figures.get("straggler_ratio", 1), _SLOW):
        one, count = worst
        ratio, ranks = one.figures["straggler_ratio"], one.metrics.get("ranks") or []
        slowest = max((rank["compute_s"] for rank in ranks), default=0.0)
        waits = f"{1000 * slowest * (1 - 1 / ratio):.0f} ms"
        yield (
            f"A slow node at {count}: {one.metrics.get('slowest_rank')} computes {ratio:.2f} times "
            f"as long as the median of the others, which wait {waits} a step for it. `gpubed "
            "health CLUSTER` looks at it."
        )


def _by_processors(points: list[Record]) -> Iterator[str]:
    def late(point: Record) -> float:
        ranks: list[dict[str, Any]] = point.metrics.get("ranks") or []
        asked = point.figures.get("emulated_compute_s")
        # A slow node is another fault: its neighbours are not late.
        return min((rank["compute_s"] for rank in ranks), default=0) / asked if asked else 0

    if worst := _worst(points, late, _LATE):
        one, count = worst
        yield (
            f"Processors were too busy at {count}: emulated compute took up to "
            f"{late(one) - 1:.0%} longer than the GPU's, so rates are too low there. "
            f"`--factor {2 * one.figures.get('time_factor', 1):.1f}` gives them more time."
        )


def _slower(points: list[Record], foretold: Mapping[str, Foretold]) -> Iterator[str]:
    def slower(point: Record) -> float:
        told = foretold.get(point.id)
        return told.low / point.figures["images_per_s"] if told else 0

    if worst := _worst([p for p in points if p.figures.get("images_per_s")], slower, 1):
        one, count = worst
        yield (
            f"Slower than the predicted interval at {count}, most at {one.id}: a step takes "
            f"{_against(one, foretold)}. Interface, fusion, nodes and processors are in order; "
            "`gpubed verify CLUSTER` measures each link."
        )
