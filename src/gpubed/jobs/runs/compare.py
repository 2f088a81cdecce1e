"""Compares runs: their origins, and whether their metrics differ by more than chance."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.core import holm, intervals, units
from gpubed.core.holm import Chance
from gpubed.core.intervals import P
from gpubed.jobs.runs.record import Origin, Record
from gpubed.jobs.trials import is_number, summarize

SETTINGS = ("world_size",)
"""Metrics that are settings of a run, also if its job does not describe them."""


@dataclass(frozen=True)
class Difference:
    """A difference between the origins or arguments of two runs, as texts for people."""

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before or 'none'} → {self.now or 'none'}"


@dataclass(frozen=True)
class Ratio:
    """A metric of one set of runs, as a multiple of the same metric of another.

    Attributes:
        before: Geometric mean over the first set, in the metric's unit; the arithmetic mean if a
            value is zero or negative.
        now: The same mean over the other set.
        ratio: `now` / `before`; None if one is zero or negative.
        low: Lower bound of the ratio's 95 % interval; None if a set has a single run, or equal
            values.
        high: Upper bound of that interval.
        runs: Number of runs in each set.
        spread: Whether the values of each set differ.
        p: P value of this comparison alone; None without an interval.
        chance: P values of this comparison alone, and corrected for the number of comparisons.
        setting: Whether the metric is a setting of the runs instead of a measurement.
    """

    metric: str
    before: float
    now: float
    ratio: float | None
    low: float | None
    high: float | None
    runs: tuple[int, int]
    spread: tuple[bool, bool]
    p: P | None = None
    chance: Chance | None = None
    setting: bool = False

    @property
    def verdict(self) -> str:
        """The result of the comparison, in words."""
        if self.setting and not any(self.spread):
            return "the same" if self.before == self.now else "different"
        return judged(self.chance, self.runs, self.spread, same=self.before == self.now)

    def document(self) -> dict[str, Any]:
        """Return the ratio for JSON."""
        own = asdict(self)
        del own["spread"], own["setting"], own["p"]  # the last is in `chance`
        return {**own, "verdict": self.verdict}


def bounds(low: float | None, high: float | None) -> str:
    """Write a ratio's interval, or `too few runs`; empty without an interval."""
    if low is None or high is None:
        return ""
    return f"{low:.3f} … {high:.3f}" if intervals.tells_size(low, high) else "too few runs"


def judged(
    chance: Chance | None,
    runs: tuple[int, int],
    spread: tuple[bool, bool],
    *,
    same: bool,
) -> str:
    """Return the result of a comparison in words, or why it has none.

    Args:
        chance: The p values; None if unknown.
        runs: Number of values on each side.
        spread: Whether the values of each side differ.
        same: Whether the means are equal.
    """
    if chance and chance.lost_by_correction:
        return f"may be chance, as one of {chance.count}"
    if chance:
        return "differs" if chance.is_significant else "within the noise"
    if min(runs) < 2:
        return "unknown: no repetition"
    if same and not any(spread):
        return "the same"
    # Values that depend on the seed alone are equal, and no samples of chance.
    return "unknown" if all(spread) else "unknown: repetitions with one seed are no samples"


def differences(before: Record, now: Record) -> list[Difference]:
    """Return the differences between the jobs, arguments and origins of two runs."""
    pairs = {
        "job": (before.request.job, now.request.job),
        "command": (shlex.join(before.request.command), shlex.join(now.request.command)),
        "world size": (before.world_size, now.world_size),
        "container": (before.request.container or "", now.request.container or ""),
        "launcher": (before.request.launcher or "", now.request.launcher or ""),
        **_by_name(before.values, now.values),
        **_of_origin(before.origin, now.origin),
    }
    if before.devices and now.devices:  # of a planned run, they are unknown
        pairs["device"] = ", ".join(before.devices), ", ".join(now.devices)
    return [Difference(what, str(a), str(b)) for what, (a, b) in pairs.items() if a != b]


def _by_name(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    def written(value: Any) -> str:
        return "" if value is None else str(value)

    return {
        f"--set {name}": (written(before.get(name)), written(now.get(name)))
        for name in dict.fromkeys([*before, *now])
    }


def _of_origin(before: Origin, now: Origin) -> dict[str, tuple[str, str]]:
    kinds: dict[str, Callable[[Origin], str]] = {
        "cluster": lambda of: f"{of.cluster} ({of.uuid[:8]})",
        "nodes": lambda of: " ".join(f"{host.name}:{host.slots}" for host in of.hosts),
        "machines": lambda of: " ".join(host.id[:12] for host in of.hosts),
        "hardware": lambda of: "; ".join(sorted({host.hardware or "?" for host in of.hosts})),
        "link rate": lambda of: "" if of.rate_bps is None else units.format_rate(of.rate_bps),
        "recipe": lambda of: f"{of.recipe} ({of.recipe_sha256[:8]})",
        "cluster.yml": lambda of: of.spec_sha256[:8],
        "job's files": lambda of: of.job_sha256[:8],
        "gpubed": lambda of: of.gpubed,
        "git": lambda of: str(of.git or ""),
    }
    pairs = {what: (text(before), text(now)) for what, text in kinds.items()}
    # Only variables of nodes that have ranks in both runs.
    for what, checksum in before.variables_sha256.items():
        if other := now.variables_sha256.get(what):
            pairs[what] = checksum[:8], other[:8]
    if before.image and now.image:  # of a planned run, it is unknown
        pairs["image"] = before.image, now.image
    if before.packages_sha256 and now.packages_sha256:
        pairs["packages"] = before.packages_sha256[:8], now.packages_sha256[:8]
    return pairs


def repetitions(of: Record, other: Record, records: Iterable[Record]) -> list[Record]:
    """Return the successful runs of a set; for a single run, the run itself.

    `bench` may run a repetition again although it succeeded; the last one counts.

    Args:
        of: A run of the set.
        other: The run that it is compared with; two runs of the same set are compared as such.
        records: All runs of the cluster.
    """
    if not of.set or of.set == other.set:
        return [of]
    ended = [run for run in records if run.set == of.set and run.state == "ok"]
    last = {run.repetition: run for run in sorted(ended, key=lambda run: run.started)}
    return [*last.values()] or [of]


def ratios(
    pairs: Iterable[tuple[Sequence[Record], Sequence[Record]]], settings: Container[str] = ()
) -> list[list[Ratio]]:
    """Compare every metric that is a number in both sets of a pair, in the order of the first set.

    P values are corrected for the number of all comparisons.

    Args:
        settings: The metrics that are settings of the runs instead of measurements.
    """
    found = [
        [replace(one, setting=one.metric in settings) for one in _by_metric(before, now)]
        for before, now in pairs
    ]
    chances = iter(holm.corrected([one.p for each in found for one in each]))
    return [[replace(one, chance=next(chances)) for one in each] for each in found]


def why_none(before: Sequence[Record], now: Sequence[Record]) -> str:
    """Return why two sets of runs have no metric in common."""
    runs = (*before, *now)
    for run in runs:
        if not summarize([run.metrics]):
            how = "is running" if run.state == "running" else f"ended as {run.state}"
            return f"{run.run_id} {how} and reported no number"
    jobs = list(dict.fromkeys(run.request.job for run in runs))
    of = f"{' and '.join(jobs)} have" if len(jobs) > 1 else "they have"
    return f"{of} no metric in common"


def _by_metric(before: Sequence[Record], now: Sequence[Record]) -> Iterator[Ratio]:
    sets = [before, now]
    sums = [summarize([record.metrics for record in records]) for records in sets]
    yield from (_ratio(name, before, now) for name in sums[0] if name in sums[1])


def _ratio(name: str, before: Sequence[Record], now: Sequence[Record]) -> Ratio:
    a, b = (
        [run.metrics[name] for run in runs if is_number(run.metrics.get(name))]
        for runs in (before, now)
    )
    found = intervals.ratio(b, a)
    # Geometric means, as in the ratio's interval; also without an interval, so that a set has the
    # same mean in each comparison.
    mean = statistics.geometric_mean if min(*a, *b) > 0 else statistics.fmean
    means = mean(a), mean(b)
    plain = means[1] / means[0] if min(means) > 0 else None
    ratio, low, high, p = found or (plain, None, None, None)
    spread = len(set(a)) > 1, len(set(b)) > 1
    return Ratio(name, means[0], means[1], ratio, low, high, (len(a), len(b)), spread, p)
