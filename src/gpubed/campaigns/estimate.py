"""How long a point takes: about as long as what is most like it took.

Before the first point of a campaign, earlier runs of its job on the same cluster stand for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubed.campaigns.file import NODES, RANKS, RATE, text
from gpubed.campaigns.matrix import Point
from gpubed.jobs.main_metric import is_number
from gpubed.jobs.runs import record as runs
from gpubed.nodes.cluster import Cluster

_MOST = 300  # are looked through, evenly spread: in a large campaign, more only take longer
_SAME = 1e-9  # distances that differ by rounding alone


@dataclass(frozen=True)
class Took:
    """How long something took, in seconds, and with which settings (`like`)."""

    settings: Mapping[str, float | str]
    seconds: float


def like(point: Point) -> dict[str, float | str]:
    """Return all settings of a point so that they can be compared: what is a number as one."""
    rate = {} if point.rate_bps is None else {RATE: point.rate_bps}
    return _read({**point.arguments, **point.settings, **rate})


def seconds(settings: Mapping[str, float | str], known: Sequence[Took]) -> float:
    """Return the mean of those that are nearest to some settings.

    As by Gower (Biometrics 27 (1971), 857-871), each setting that differs counts up to 1: words
    wholly, and numbers by how far their ratio is from 1, since time goes with it.
    """
    known = known[:: 1 + len(known) // _MOST]
    distances = [_distance(settings, one.settings) for one in known]
    nearest = min(distances) + _SAME
    return statistics.fmean(
        one.seconds for one, far in zip(known, distances, strict=True) if far <= nearest
    )


def earlier(cluster: Cluster, job: str, point: Point) -> list[Took]:
    """Return how long the runs of a job took that ended well on a cluster.

    Args:
        point: One of the campaign whose points they are compared with.
    """
    found = [
        run
        for run in runs.every(cluster.paths)[0].values()
        if (run.request.job, run.origin.uuid) == (job, cluster.allocation.uuid)
        if run.state == "ok" and not run.by
    ]
    return [Took(_settings(run, point), run.seconds) for run in found if run.seconds is not None]


def _settings(run: runs.Record, point: Point) -> dict[str, float | str]:
    """Return what a run was given that a point names, and what it was given beyond that."""
    given = {name: run.values.get(name) for name in (*point.arguments, *run.request.settings)}
    sizes = {NODES: len(run.origin.hosts), RANKS: run.world_size, RATE: run.origin.rate_bps}
    given |= {name: size for name, size in sizes.items() if name in point.settings}
    return _read(given)


def _read(given: Mapping[str, Any]) -> dict[str, float | str]:
    return {name: _plain(text(value)) for name, value in given.items() if value is not None}


def _plain(written: str) -> float | str:
    try:
        number = float(written)
    except ValueError:
        return written
    return number if is_number(number) else written


def _distance(one: Mapping[str, float | str], other: Mapping[str, float | str]) -> float:
    return sum(_differs(one.get(name), other.get(name)) for name in one.keys() | other.keys())


def _differs(one: float | str | None, other: float | str | None) -> float:
    if one == other:
        return 0.0
    if isinstance(one, float) and isinstance(other, float):
        return min(1.0, abs(one - other) / max(abs(one), abs(other)))
    return 1.0
