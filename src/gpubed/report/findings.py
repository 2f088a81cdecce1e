"""What an analysis found, in sentences with the figures that they stand on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gpubed.core import families, intervals
from gpubed.core.families import Chance
from gpubed.jobs import figures, main_metric
from gpubed.report import groups, scaling, svg, together, wording
from gpubed.report.analysis import Analysis
from gpubed.report.groups import Group, Ratio
from gpubed.report.read import Campaign, Value
from gpubed.report.scaling import Comparison, Scaled, Series
from gpubed.report.steps import FEW, Limit, Straggling

SIMULATED = (
    "The GPUs are simulated: no GPU has computed, the CPU did; these are no figures of a GPU."
)
NOT_REPEATED = "no repetition, so no interval"
_NO_INTERVAL = "no interval: not repeated, or the same each time"
PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "data_s": "waiting for data",
    "other": "other",
}
_SPELT_OUT = {**PARTS, "other": "what is neither compute, communication nor data"}
_SUPERLINEAR = 1.05


def told(analysis: Analysis) -> list[str]:
    """Return all findings, the most important ones first."""
    found = [*_warnings(analysis), *summary(analysis), *details(analysis), *_gaps(analysis)]
    # A terminal obeys what is no text, and each of them is one line of it.
    return [figures.one_line(svg.clean(text)) for text in found]


def summary(analysis: Analysis) -> list[str]:
    """Return what was found, and what limits it."""
    return [
        *_extent(analysis),
        *_throughput(analysis),
        *_limits(analysis),
        *_beside_compute(analysis),
    ]


def details(analysis: Analysis) -> list[str]:
    """Return what else makes a difference."""
    return [*_comparisons(analysis), *_stragglers(analysis.stragglers)]


def remarks(analysis: Analysis) -> list[str]:
    """Return what readers must know of the figures before they believe them."""
    return [*_warnings(analysis), *_gaps(analysis)]


def _warnings(analysis: Analysis) -> list[str]:
    return [SIMULATED] if analysis.measured.simulated else []


def bounds(ratio: Ratio, *, percent: bool = False, chance: Chance | None = None) -> str:
    """Write a ratio with its interval, or that it has none.

    Args:
        chance: What chance makes of it among others.
    """
    write = wording.percent if percent else wording.times
    if ratio.low is None or ratio.high is None:
        return f"{write(ratio.value)} ({_NO_INTERVAL})"
    if ratio.low == ratio.high:
        return write(ratio.value)
    told = "too few runs for an interval"
    if intervals.tells_size(ratio.low, ratio.high):
        told = f"95 % interval {write(ratio.low)} to {write(ratio.high)}"
    if chance and chance.count > 1:
        told += f", p {_equals(families.written(chance))} among {chance.count} comparisons"
    return f"{write(ratio.value)} ({told})"


def _equals(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"


def _extent(analysis: Analysis) -> Iterator[str]:
    measured = analysis.measured
    campaign, ended = measured.campaign, len(measured.points)
    if not ended:
        names = " and ".join(dict.fromkeys(part.campaign.name for part in measured.each))
        yield f"No point of campaign {names} has ended yet."
        return
    clusters = dict.fromkeys(_cluster(part.campaign) for part in measured.each)
    where = f"cluster{'' if len(clusters) == 1 else 's'} {', '.join(clusters)}"
    good = ended - len(analysis.failed)
    yield (
        f"Job {campaign.job}{_constant(analysis)} was measured on {where} at "
        f"{_counted(len(analysis.groups), 'point')}: "
        f"{_counted(ended, 'run')}, of which {good} ended well."
    )


def _cluster(campaign: Campaign) -> str:
    nodes = _counted(len(campaign.nodes), "node")
    return f"{campaign.cluster} ({campaign.backend}, {nodes})"


def _constant(analysis: Analysis) -> str:
    """Name the settings that all points have, which are named nowhere else."""
    factors = analysis.measured.campaign.factors.items()
    same = {name: values[0] for name, values in factors if len(values) == 1}
    return f" with {wording.settings(same)}" if same else ""


def _throughput(analysis: Analysis) -> Iterator[str]:
    grown = [series for series in analysis.series if _grows(series)]
    if not grown or analysis.throughput is None:
        if analysis.throughput and analysis.groups:
            yield from _best(analysis, analysis.throughput)
        return
    if len({(series.baseline_size, series.largest.size) for series in grown}) > 1:
        # An efficiency falls with the size, whatever the series.
        largest = max(grown, key=lambda one: (one.largest.size, one.largest.efficiency.value))
        why = f"; the {len(grown)} series are not ranked, since their sizes differ"
        yield _growth(largest, analysis.throughput, analysis.scale or "nodes", why)
        return
    ordered = sorted(grown, key=lambda series: series.largest.efficiency.value, reverse=True)
    best, worst = ordered[0], ordered[-1]
    which, last = _ranks(ordered, analysis.throughput) if len(ordered) > 1 else ("", "")
    yield _growth(best, analysis.throughput, analysis.scale or "nodes", which)
    if last:
        yield _growth(worst, analysis.throughput, analysis.scale or "nodes", last)


def _ranks(ordered: Sequence[Series], metric: str) -> tuple[str, str]:
    """Say what the highest of several efficiencies is worth, and the lowest.

    They are told of as two only where they differ by more than chance; and each as the one that
    it is only where it differs so from all others. Which pair is looked at depends on what was
    measured, so each counts as one of all pairs.

    Returns:
        What follows on the highest, and on the lowest, which is empty where it is not told of.
    """
    best, worst, count = ordered[0], ordered[-1], len(ordered)
    pairs = math.comb(count, 2)
    apart = scaling.efficiencies(best, worst, metric)
    if apart.low is None:
        return f"; there is no interval to rank the {count} series by", ""
    if not apart.tells(pairs):
        return f"; of {count} series, the highest and the lowest are not shown to differ", ""
    first, last = (
        "" if _is_alone(one, ordered, metric, pairs) else "among " for one in (best, worst)
    )
    return f", {first}the best of {count} series", f", {last}the worst"


def _is_alone(one: Series, ordered: Sequence[Series], metric: str, pairs: int) -> bool:
    others = (other for other in ordered if other is not one)
    return all(scaling.efficiencies(one, other, metric).tells(pairs) for other in others)


def _grows(series: Series) -> bool:
    return series.largest.size > series.baseline_size


def _best(analysis: Analysis, metric: str) -> Iterator[str]:
    measured = [group for group in analysis.groups if group.mean(metric) is not None]
    measured.sort(key=lambda group: group.mean(metric) or 0.0, reverse=True)
    if measured:
        best, *others = measured
        figure = wording.figure(best.mean(metric), metric)
        doubt = _unsure(best, others, metric)
        yield f"The highest {wording.metric(metric)} is {figure}{_with(best.named())}{doubt}."


def _unsure(best: Group, others: Sequence[Group], metric: str) -> str:
    """Say whether the highest of several is more than chance, by its ratios to all others.

    That all of them must tell is as strict as a correction for their number would be (Gutmann
    and Maymin, Annals of Statistics 15 (1987), 456-461).
    """
    leads = [(groups.ratio(best, other, metric), other) for other in others]
    if any(lead.low is None for lead, _ in leads):
        return "; there is no interval to tell it from the others by"
    near = [other for lead, other in leads if not lead.tells()]
    return f", which that with {near[0].named()} is not shown to differ from" if near else ""


def _growth(series: Series, metric: str, scale: str, which: str) -> str:
    largest, base = series.largest, series.baseline
    start, end = (wording.figure(g.mean(metric), metric) for g in (base, largest.group))
    return (
        f"Throughput{_with(series.label)} goes from {start} on "
        f"{wording.setting(scale, series.baseline_size)} to {end} on "
        f"{wording.setting(scale, largest.size)}: an efficiency of "
        f"{bounds(largest.efficiency, percent=True)}{which}{_doubt(largest)}."
    )


def _with(label: str) -> str:
    """Return what follows on a noun: which of them is meant, where there are others."""
    return "" if label == wording.ALL else f" with {label}"


def _doubt(largest: Scaled) -> str:
    low = largest.efficiency.low
    return "; more than linear growth is worth a second look" if low and low > _SUPERLINEAR else ""


def _limits(analysis: Analysis) -> Iterator[str]:
    """Say what limits scaling, or why that is not said, each with where it costs the most."""
    scale = analysis.scale or "nodes"
    by_subject: dict[str, list[Limit]] = defaultdict(list)
    for limit in analysis.limits:
        alone = f"What limits scaling is not known without fewer {scale} to compare with"
        by_subject[_SUBJECTS[limit.kind] if limit.grown else alone].append(limit)
    for subject, limits in sorted(by_subject.items(), key=lambda item: -len(item[1])):
        worst = max(limits, key=lambda one: one.share)
        where = wording.setting(scale, worst.size)
        yield (
            f"{subject} in {len(limits)} of {len(analysis.limits)} series:"
            f"{_with(worst.series.label)} on {where}, "
            f"{_cost(worst, analysis)}."
        )


LIMITS = {
    "link": "link",
    "compute": "compute",
    "data": "reading data",
    "stragglers": "slowest rank",
    "other": "other",
    "none": "nothing much",
    "not shown": "not shown",
    "not known": "not known",
}
_DOUBTS = ("not shown", "not known")
_SUBJECTS = {
    "link": "The link limits scaling",
    "compute": "Compute limits scaling",
    "data": "Reading data limits scaling",
    "stragglers": "A straggler limits scaling",
    "other": "What is neither compute, communication nor data limits scaling",
    "none": "Nothing limits scaling much",
    "not shown": "What limits scaling is not shown",
    "not known": "What limits scaling is not known without repetitions",
}


def _cost(limit: Limit, analysis: Analysis) -> str:
    step, took = limit.step, figures.written(limit.seconds, "s")
    share = f"{wording.percent(limit.share)} of a step of {figures.written(step.seconds, 's')}"
    fewer = wording.setting(analysis.scale or "nodes", limit.series.baseline_size)
    if limit.kind in _DOUBTS:
        beside = _floor(limit) if limit.cause == "link" else ""
        cause = LIMITS[limit.cause]
        most = f"{cause} grows the most from {fewer} on, by"
        if not limit.grown:
            most = f"beside compute, {cause} takes the most,"
        return f"{most} {took}{interval(limit)}, {share}{beside}"
    more = f"{took} more than on {fewer}"
    if limit.kind == "link":
        return f"communication that nothing hides takes {more}, {share}{_floor(limit)}"
    if limit.kind == "compute":
        return f"computing takes {more}, {share}{_shared(limit, analysis)}"
    if limit.kind == "data":
        return f"waiting for data takes {more}, {share}"
    if limit.kind == "stragglers":
        return f"the others wait {took} for the slowest rank, {share}"
    if limit.kind == "other":
        return f"it takes {more}, {share}"
    compute = wording.percent(step.shares()["compute_s"])
    since = f", and no part grew much from {fewer} on" if limit.series.baseline_size > 1 else ""
    return f"{compute} of a step of {figures.written(step.seconds, 's')} is compute{since}"


def _beside_compute(analysis: Analysis) -> Iterator[str]:
    """Say what steps have beside compute on the most nodes: what never grew slows them, too."""
    for part, called in _SPELT_OUT.items():
        found = [one for one in analysis.limits if part in one.beside_compute]
        if not found:
            continue
        worst = max(found, key=lambda one: one.beside_compute[part] / one.step.seconds)
        took, step = worst.beside_compute[part], worst.step.seconds
        yield (
            f"Whether it grew or not, {called} is {wording.percent(FEW)} of a step or more in "
            f"{len(found)} of {len(analysis.limits)} series:{_with(worst.series.label)} on "
            f"{wording.setting(analysis.scale or 'nodes', worst.size)}, "
            f"{figures.written(took, 's')} of {figures.written(step, 's')} "
            f"({wording.percent(took / step)})."
        )


def named(limit: Limit) -> str:
    """Write what limits; where that is not sure, also what it may be."""
    doubted = f"; the most: {LIMITS[limit.cause]}" if limit.kind in _DOUBTS else ""
    return f"{LIMITS[limit.kind]}{doubted}"


def interval(limit: Limit) -> str:
    """Write the interval of what a limit costs per step; nothing where there is none."""
    if limit.low is None or limit.high is None:
        return ""
    low, high = (figures.written(bound, "s") for bound in (limit.low, limit.high))
    return f" (95 % interval {low} to {high})"


def _floor(limit: Limit) -> str:
    if limit.least_s is None:
        return ""
    took = figures.written(limit.least_s, "s")
    return (
        f" (to bring over the link what a node must send takes {took} at its rate, some of which "
        "may be hidden behind compute)"
    )


def _shared(limit: Limit, analysis: Analysis) -> str:
    campaign = analysis.measured.of(limit.series.settings).campaign
    # A former version did not say it, and no other backend made such nodes then.
    one = campaign.backend == "local" if campaign.one_host is None else campaign.one_host
    return f": nodes of the {campaign.backend} backend share the CPUs of one machine" if one else ""


def _comparisons(analysis: Analysis) -> Iterator[str]:
    """Compare each pair of values where there are the most nodes, and where it matters most."""
    pairs: dict[tuple[str, str, str], list[Comparison]] = defaultdict(list)
    for one in analysis.comparisons:
        pairs[one.factor, str(one.value), str(one.against)].append(one)
    what = wording.metric(analysis.throughput or "")
    for found in pairs.values():
        # What was not repeated says nothing of chance.
        known = [one for one in found if one.ratio.low is not None]
        yield _compared(what, known or found, len(known), left_out=len(found) - len(known))


def _compared(what: str, found: Sequence[Comparison], known: int, *, left_out: int) -> str:
    """Say how two values compare.

    Args:
        known: How many of them have an interval.
        left_out: How many have none.
    """
    sure = [one for one in found if one.tells]
    most = max(sure or found, key=_size)
    value, against = (wording.setting(most.factor, v) for v in (most.value, most.against))
    rest = _with(most.group.named(most.factor))
    if known and not sure:
        return (
            f"Between {value} and {against} no difference shows in "
            f"{_counted(known, 'comparison')}; the largest is a ratio of "
            f"{bounds(most.ratio, chance=most.chance)}"
            f"{rest}."
        )
    ratio = bounds(most.ratio, chance=most.chance)
    largest = f"{value} gives {ratio} times the {what} of {against}{rest}"
    if not known:
        return f"{largest}, where they differ the most."
    return (
        f"{largest}, where they differ the most{_other_way(sure, most)}; "
        f"{len(sure)} of {_counted(known, 'such comparison')}"
        f"{f' that {_was(known)} repeated' if left_out else ''} "
        f"{'differs' if len(sure) == 1 else 'differ'} by more than chance."
    )


def _size(one: Comparison) -> float:
    """Return how much a ratio differs from 1: half as much is as far from it as twice as much."""
    return abs(math.log(one.ratio.value))


def _other_way(sure: Sequence[Comparison], most: Comparison) -> str:
    """Name the largest difference in the other direction than the largest of all, if there is."""
    up = most.ratio.value > 1
    other = max((one for one in sure if (one.ratio.value > 1) != up), key=_size, default=None)
    if other is None:
        return ""
    return f", but {bounds(other.ratio)} times{_with(other.group.named(other.factor))}"


def _stragglers(found: Sequence[Straggling]) -> Iterator[str]:
    by_host: dict[str, list[Straggling]] = defaultdict(list)
    for one in found:
        if one.slow:
            by_host[one.host].append(one)
    for host, slow in sorted(by_host.items(), key=lambda item: -len(item[1])):
        worst = max(slow, key=lambda one: one.ratio.value)
        yield (
            f"{host or 'A rank'} is a straggler at {len(slow)} of "
            f"{_counted(len(found), 'point')} with several ranks: at worst, with "
            f"{worst.group.named()}, its compute takes {bounds(worst.ratio)} "
            "times the median of the others', which wait "
            f"{figures.written(worst.waiting_s, 's')} per step."
        )
    if found and not by_host:
        yield _no_straggler(found)


def _no_straggler(found: Sequence[Straggling]) -> str:
    known = [one for one in found if one.ratio.low is not None]
    longer, once = (
        f"{wording.percent(max(max(ratios) - 1, 0.0))} longer"
        for ratios in (
            [one.ratio.value for one in known or found],
            [one.once for one in found],
        )
    )
    others = "than the median of the others'"
    if not known:
        return (
            "Whether a rank is a straggler is not known without repetitions: the slowest one's "
            f"compute took at most {longer} {others}."
        )
    return (
        f"No rank is shown to be a straggler: over the repetitions of a point, no one's compute "
        f"takes more than {longer} {others}. In a single run, whichever rank was the slowest "
        f"took up to {once}."
    )


def _gaps(analysis: Analysis) -> Iterator[str]:
    if once := len(analysis.single):
        yield (
            f"{once} of {_counted(len(analysis.groups), 'point')} {_was(once)} measured only once: "
            "there is no repetition, so these figures have no interval."
        )
    yield from _apart(analysis)
    yield from _baselines(analysis)
    for metric, narrow, count in analysis.stopped():
        yield (
            f"Points were repeated until the interval of {metric} was narrow enough, or as "
            f"often as the campaign allows: it was narrow enough at {narrow} of "
            f"{_counted(count, 'point')}. To look at "
            "intervals for that makes them a little too narrow."
        )
    if analysis.failed:
        failed = _counted(len(analysis.failed), "run")
        yield f"{failed} failed and {_is(len(analysis.failed))} in no figure."
    if analysis.missing:
        yield f"{_counted(len(analysis.missing), 'point')} of the campaign had not ended yet."
    if broken := analysis.measured.broken:
        yield f"{_counted(len(broken), 'file')} could not be read and {_is(len(broken))} left out."
    if len({part.campaign.job_files for part in analysis.measured.each} - {""}) > 1:
        yield "The job's files were not the same everywhere: some of a difference may be theirs."


def _apart(analysis: Analysis) -> Iterator[str]:
    """Say which of several campaigns stand beside the others, and are compared with none."""
    measured = analysis.measured
    if not measured.parts or analysis.throughput is None:
        return
    left, differ = together.apart(measured, analysis.groups, analysis.comparisons)
    if left:
        listed = (f"{name} ({', '.join(map(_value, values))})" for name, values in differ.items())
        why = f"they differ in {', '.join(listed)}" if differ else "none has the same settings"
        yield f"No point of {' and '.join(left)} is compared with another campaign's: {why}."


def _value(value: Value) -> str:
    return "not given" if value is None else str(value)


def _baselines(analysis: Analysis) -> Iterator[str]:
    """Say what efficiency stands on: one node of a cluster may be unlike the others."""
    grown = [series for series in analysis.series if _grows(series)]
    if hosts := list(dict.fromkeys(host for series in grown for host in series.hosts)):
        yield (
            f"Efficiency is measured against what {', '.join(hosts)} did, where the smallest "
            "points ran: where that is faster than other nodes, efficiency is too low, where it is "
            "slower, too high."
        )
    each = (scaling.uneven(p.campaign, analysis.scale) for p in analysis.measured.each)
    ranks = sorted({count for ranks in each for count in ranks})
    if ranks and analysis.throughput and analysis.throughput.endswith(main_metric.WORK):
        yield (
            f"Nodes have from {ranks[0]} to {ranks[-1]} ranks: linear growth and efficiency count "
            "ranks, by the job's metric world_size; where that is missing, there are none."
        )


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
