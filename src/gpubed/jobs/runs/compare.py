"""What differs between runs, and whether their figures differ by more than chance."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.core import families, intervals, units
from gpubed.core.families import Chance
from gpubed.core.intervals import P
from gpubed.jobs.runs.record import Origin, Record
from gpubed.jobs.trials import is_number, summarize


@dataclass(frozen=True)
class Difference:
    """Something that two runs were not made alike in; values as they are told to a person."""

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before or 'none'} → {self.now or 'none'}"


@dataclass(frozen=True)
class Ratio:
    """A metric of one set of runs, as a multiple of the same metric of another.

    Attributes:
        before: Geometric mean over the runs of the first set, in the metric's unit, as the ratio
            and its interval are of those; the arithmetic one where a value is zero or negative.
        now: The same of the other set.
        ratio: `now` / `before`; None where one is zero or negative.
        low: Lower bound of the ratio's 95 % interval; None where a set has a single run, or the
            same in each.
        high: Its upper bound.
        runs: How many runs there are in each set.
        spread: Whether the runs of each set differ among themselves.
        p: What chance makes of it by itself; None where there is no interval.
        chance: The same, among all that was compared at once.
        setting: Whether the metric says how runs were made, and measures nothing.
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
        """What can be said of it."""
        if self.setting and not any(self.spread):
            return "the same" if self.before == self.now else "different"
        return judged(self.chance, self.runs, self.spread, same=self.before == self.now)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        own = asdict(self)
        del own["spread"], own["setting"], own["p"]  # the last is in `chance`
        return {**own, "verdict": self.verdict}


def bounds(low: float | None, high: float | None) -> str:
    """Write a ratio's interval, or that it tells nothing."""
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
    """Say what a ratio shows, or why it shows nothing.

    Args:
        chance: What chance does; None where nobody knows.
        runs: How many values there are on each side.
        spread: Whether those of each side differ among themselves.
        same: Whether the means are equal.
    """
    if chance and chance.would_show:
        return f"may be chance, as one of {chance.count}"
    if chance:
        return "differs" if chance.shows else "within the noise"
    if min(runs) < 2:
        return "unknown: no repetition"
    if same and not any(spread):
        return "the same"
    # What follows from the seed alone is the same each time, and says nothing of chance.
    return "unknown" if all(spread) else "unknown: repetitions with one seed are no samples"


def differences(before: Record, now: Record) -> list[Difference]:
    """Return what two runs were not made alike in."""
    pairs = {
        "job": (before.request.job, now.request.job),
        "command": (shlex.join(before.request.command), shlex.join(now.request.command)),
        "world size": (before.world_size, now.world_size),
        "container": (before.request.container or "", now.request.container or ""),
        "launcher": (before.request.launcher or "", now.request.launcher or ""),
        **_by_name(before.values, now.values),
        **_of_origin(before.origin, now.origin),
    }
    if before.devices and now.devices:  # beforehand nobody knows
        pairs["device"] = ", ".join(before.devices), ", ".join(now.devices)
    return [Difference(what, str(a), str(b)) for what, (a, b) in pairs.items() if a != b]


def _by_name(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        f"--set {name}": (_written(before.get(name)), _written(now.get(name)))
        for name in dict.fromkeys([*before, *now])
    }


def _written(value: Any) -> str:
    return "" if value is None else str(value)


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
    pairs = {what: (told(before), told(now)) for what, told in kinds.items()}
    # Those of a node that has ranks in one of the two alone say nothing.
    for what, checksum in before.variables_sha256.items():
        if other := now.variables_sha256.get(what):
            pairs[what] = checksum[:8], other[:8]
    if before.image and now.image:  # beforehand nobody has asked for it
        pairs["image"] = before.image, now.image
    return pairs


def repetitions(of: Record, other: Record, records: Iterable[Record]) -> list[Record]:
    """Return the runs of a set that ended well; of a single run, the run itself.

    A repetition that was made again counts as it was made last: `bench` does that with one whose
    run was well, and which it could not use all the same.

    Args:
        of: A run of the set.
        other: What it is compared with; where that is of the same set, each stands for itself.
        records: All runs that there are.
    """
    if not of.set or of.set == other.set:
        return [of]
    ended = [one for one in records if one.set == of.set and one.state == "ok"]
    last = {one.repetition: one for one in sorted(ended, key=lambda one: one.started)}
    return [*last.values()] or [of]


def ratios(
    pairs: Iterable[tuple[Sequence[Record], Sequence[Record]]], settings: Container[str] = ()
) -> list[list[Ratio]]:
    """Compare every metric that is a number in both sets of a pair, in the order of the first.

    All of them are one family: what chance does is corrected for their number.

    Args:
        settings: The metrics that say how runs were made, and measure nothing.
    """
    found = [
        [replace(one, setting=one.metric in settings) for one in _by_metric(before, now)]
        for before, now in pairs
    ]
    chances = iter(families.corrected([one.p for each in found for one in each]))
    return [[replace(one, chance=next(chances)) for one in each] for each in found]


def why_none(before: Sequence[Record], now: Sequence[Record]) -> str:
    """Say why two sets of runs have no figure in common."""
    for one in (*before, *now):
        if not summarize([one.metrics]):
            how = "is at work" if one.state == "running" else f"ended as {one.state}"
            return f"{one.run_id} {how} and reported no number"
    jobs = list(dict.fromkeys(one.request.job for one in (*before, *now)))
    of = f"{' and '.join(jobs)} have" if len(jobs) > 1 else "they have"
    return f"{of} no figure in common"


def _by_metric(before: Sequence[Record], now: Sequence[Record]) -> Iterator[Ratio]:
    sets = [before, now]
    sums = [summarize([record.metrics for record in records]) for records in sets]
    yield from (_ratio(name, before, now) for name in sums[0] if name in sums[1])


def _ratio(name: str, before: Sequence[Record], now: Sequence[Record]) -> Ratio:
    a, b = (_numbers(name, records) for records in (before, now))
    found = intervals.ratio(b, a)
    # The interval is of a ratio of geometric means, and so are the figures beside it; without
    # one, too, so that a set has the same figure beside whatever it is compared with.
    mean = statistics.geometric_mean if min(*a, *b) > 0 else statistics.fmean
    means = mean(a), mean(b)
    plain = means[1] / means[0] if min(means) > 0 else None
    ratio, low, high, p = found or (plain, None, None, None)
    spread = len(set(a)) > 1, len(set(b)) > 1
    return Ratio(name, means[0], means[1], ratio, low, high, (len(a), len(b)), spread, p)


def _numbers(name: str, records: Sequence[Record]) -> list[float]:
    return [r.metrics[name] for r in records if is_number(r.metrics.get(name))]
