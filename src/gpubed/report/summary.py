"""The summary of a report: what was measured, how it scales, what limits, what to try next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from gpubed.campaigns import findings
from gpubed.core import intervals, reading
from gpubed.jobs.metrics import WORK, formatted, one_line
from gpubed.nodes.allocation import Network
from gpubed.report import merge, residuals, scaling, wording
from gpubed.report.analysis import Analysis
from gpubed.report.groups import Ratio
from gpubed.report.read import Measured
from gpubed.report.steps import Limit

SIMULATED = (
    "The GPUs are simulated: no GPU has computed, the CPU did; these are no figures of a GPU."
)
EMULATED = (
    "Compute is emulated: no GPU has computed, ranks slept as long as one would; communication is "
    "real, and times and rates are scaled by {}."
)
NOT_REPEATED = "no repetition, so no interval"
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
_TAKES = {**LIMITS, "link": "communication", "stragglers": "waiting for the slowest rank"}
_SUBJECTS = {
    "link": "The link limits scaling",
    "compute": "Compute limits scaling",
    "data": "Reading data limits scaling",
    "stragglers": "A straggler limits scaling",
    "other": "Time outside compute, communication and data limits scaling",
    "none": "Nothing limits scaling much",
    "not shown": "What limits scaling is not shown",
    "not known": "What limits scaling is not known without repetitions",
}
_NEXT = {
    "link": "A larger batch, compressed gradients, or a faster link",
    "compute": "Nodes that share no CPUs; and their clocks and temperatures: `gpubed health`",
    "data": "A faster disk: job stage brings shards to each node; or more reading processes",
    "stragglers": "The node of the slowest rank: `gpubed verify`, or a campaign without it",
    "other": "A profile of a step: no part that the job measures explains it",
    "none": "More nodes, as nothing limits much yet",
    "not shown": "More repetitions (repeat in the campaign's file)",
    "not known": "More repetitions (repeat in the campaign's file), on fewer nodes as well",
}


def told(analysis: Analysis) -> list[str]:
    """Return warnings, results and gaps, a line each, the most important first."""
    summary = lines(analysis)
    if "Try next" in summary:
        summary["Try next"] = f"Try next: {summary['Try next']}"
    found = [*kind(analysis), *summary.values(), *_gaps(analysis)]
    return [one_line(wording.clean(text)) for text in found]


def lines(analysis: Analysis) -> dict[str, str]:
    """Return the summary: sentences by topic."""
    found = {
        "Measured": _extent(analysis),
        "Rehearsal": _rehearsal(analysis.measured),
        "Scaling": _scaling(analysis),
        "What limits": " ".join(_limits(analysis)),
        "Differences": " ".join(_comparisons(analysis)),
        "Stragglers": _stragglers(analysis),
        "Predicted": residuals.words(analysis.residuals),
        "Try next": _next(analysis),
    }
    return {about: text for about, text in found.items() if text}


def remarks(analysis: Analysis) -> list[str]:
    """Return the limitations of the figures, a sentence each."""
    return [*kind(analysis), *_gaps(analysis)]


def kind(analysis: Analysis) -> list[str]:
    """Return a sentence if GPUs were simulated or their computation emulated."""
    marks = [SIMULATED] if analysis.measured.simulated else []
    if analysis.measured.emulated:
        factors = {point.figures.get("time_factor", 1.0) for point in analysis.measured.points}
        ends = dict.fromkeys((min(factors), max(factors)))
        marks.append(EMULATED.format(" to ".join(f"{one:g}" for one in ends)))
    return marks


def bounds(ratio: Ratio, *, percent: bool = False) -> str:
    """Write a ratio with its interval, or the reason why it has none."""
    write = wording.percent if percent else wording.times
    if ratio.low is None or ratio.high is None:
        return f"{write(ratio.value)} (no interval: not repeated, or the same each time)"
    if ratio.low == ratio.high:
        return write(ratio.value)
    if not intervals.tells_size(ratio.low, ratio.high):
        return f"{write(ratio.value)} (too few runs for an interval)"
    return f"{write(ratio.value)} (95 % interval {write(ratio.low)} to {write(ratio.high)})"


def named(limit: Limit) -> str:
    """Write what limits; if that is not significant, also the part that grew the most."""
    doubted = limit.kind in ("not shown", "not known")
    return LIMITS[limit.kind] + (f"; the most: {LIMITS[limit.cause]}" if doubted else "")


def beside(limit: Limit) -> str:
    """Write the parts of a step except compute, as shares of it."""
    parts = limit.beside_compute.items()
    seconds = limit.step.seconds
    return ", ".join(f"{wording.PARTS[part]} {wording.percent(s / seconds)}" for part, s in parts)


def cost(limit: Limit) -> str:
    """Write a limit's cost per step, with its interval if there is one."""
    took = formatted(limit.seconds, "s")
    if limit.low is None or limit.high is None:
        return took
    low, high = (formatted(bound, "s") for bound in (limit.low, limit.high))
    return f"{took} (95 % interval {low} to {high})"


def _extent(analysis: Analysis) -> str:
    measured = analysis.measured
    campaigns, ended = [part.campaign for part in measured.each], len(measured.points)
    if not ended:
        names = " and ".join(dict.fromkeys(one.name for one in campaigns))
        return f"No point of campaign {names} has ended yet."
    clusters = dict.fromkeys(
        f"{one.cluster} ({one.backend}, {_counted(len(one.nodes), 'node')})" for one in campaigns
    )
    where = f"cluster{'' if len(clusters) == 1 else 's'} {', '.join(clusters)}"
    factors = measured.campaign.factors.items()
    same = {name: values[0] for name, values in factors if len(values) == 1}
    return (
        f"Job {measured.campaign.job}{_with(wording.settings(same))} on {where}: "
        f"{_counted(len(analysis.groups), 'point')}, {_counted(ended, 'run')}, "
        f"{len(analysis.failed)} failed."
    )


def _rehearsal(measured: Measured) -> str:
    """Name what is wrong in a rehearsal; empty for other campaigns."""
    if not measured.emulated:
        return ""
    network = measured.campaign.made_with.get("the experiment network")
    subnet = (
        reading.Document(network.encode(), "campaign.json").json(Network).subnet
        if network
        else None
    )
    good = [point for point in measured.points if point.status == "ok"]
    found = findings.found(good, measured.predicted, subnet)
    return " ".join(found) or "No fault found: network, fusion, nodes and processors are in order."


def _scaling(analysis: Analysis) -> str:
    """Write the highest and lowest efficiency at the largest size; else the highest throughput."""
    metric = analysis.throughput
    grown = [one for one in analysis.series if one.largest.size > one.baseline_size]
    if metric and grown:
        size = max(one.largest.size for one in grown)
        grown = [one for one in grown if one.largest.size == size]
        grown.sort(key=lambda one: -one.largest.efficiency.value)
        said = [
            f"{bounds(one.largest.efficiency, percent=True)}{_with(one.label)}, at "
            f"{wording.figure(one.largest.group.mean(metric), metric)}"
            for one in [*grown[:1], *grown[1:][-1:]]
        ]
        least = sorted({one.baseline_size for one in grown})[0]
        on, base = (wording.setting(analysis.scale or "nodes", count) for count in (size, least))
        several = f" of {len(grown)} series" if len(grown) > 1 else ""
        return f"Efficiency on {on} against {base}{several}: {'; down to '.join(said)}."
    best = max(analysis.groups, key=lambda one: (metric and one.mean(metric)) or 0.0, default=None)
    if not metric or not best or best.mean(metric) is None:
        return ""
    figure = wording.figure(best.mean(metric), metric)
    return f"The highest {wording.metric(metric)} is {figure}{_with(best.named())}."


def _limits(analysis: Analysis) -> Iterator[str]:
    scale, of = analysis.scale or "nodes", len(analysis.limits)
    alone = f"What limits scaling is not known without fewer {scale} to compare with"
    subjects = [_SUBJECTS[one.kind] if one.grown else alone for one in analysis.limits]
    for subject, count in Counter(subjects).most_common():
        limits = zip(analysis.limits, subjects, strict=True)
        worst = max((one for one, s in limits if s == subject), key=lambda one: one.share)
        where = f"{_with(worst.series.label)} on {wording.setting(scale, worst.size)}"
        if worst.kind == "none":
            said = f"; beside compute, a step has {beside(worst)}" if beside(worst) else ""
        else:
            more = f" more than on {wording.setting(scale, worst.series.baseline_size)}"
            share = f"{more if worst.grown else ''}, {wording.percent(worst.share)} of a step"
            alone_s = worst.least_s if worst.cause == "link" else None
            least = f"; the link alone needs {formatted(alone_s, 's')}" if alone_s else ""
            said = f": {_TAKES[worst.cause]} takes {cost(worst)}{share}{least}"
        yield f"{subject} in {count} of {of} series, most{where}{said}."


def _comparisons(analysis: Analysis) -> Iterator[str]:
    pairs = Counter((c.factor, c.value, c.against) for c in analysis.comparisons)
    what = wording.metric(analysis.throughput or "")
    for (factor, value, against), count in pairs.items():
        pair = (factor, value, against)
        found = [c for c in analysis.comparisons if (c.factor, c.value, c.against) == pair]
        sure = [one for one in found if one.tells]
        known = [one for one in found if one.ratio.low is not None]
        # By logarithms: half as much is as far from 1 as twice as much.
        most = max(sure or known or found, key=lambda one: abs(math.log(one.ratio.value)))
        over = wording.over(factor, value, against)
        yield (
            f"{over}: {bounds(most.ratio)} times the {what}{_with(most.group.named(factor))}, at "
            f"most; {len(sure)} of {_counted(count, 'comparison')} "
            f"{'differs' if len(sure) == 1 else 'differ'} by more than chance."
        )


def _stragglers(analysis: Analysis) -> str:
    slow = sorted((one for one in analysis.stragglers if one.slow), key=lambda s: -s.ratio.value)
    if slow:
        points = _counted(len(analysis.stragglers), "point")
        worst = {one.host: one for one in reversed(slow)}
        return " ".join(
            f"{host or 'A rank'} is a straggler at {count} of {points}: at worst, its compute "
            f"takes {bounds(worst[host].ratio)} times the median of the others'."
            for host, count in Counter(one.host for one in slow).most_common()
        )
    if not analysis.stragglers:
        return ""
    if all(one.ratio.low is None for one in analysis.stragglers):
        return "Whether a rank is a straggler is not known without repetitions."
    return "No rank is shown to be a straggler."


def _next(analysis: Analysis) -> str:
    if analysis.missing:
        return "The same `gpubed bench` command goes on with the points that have not ended."
    causes = {"data_s": "data", "exposed_communication_s": "link", "other": "other"}
    kinds: dict[str, None] = {}
    for one in analysis.limits:
        largest = max(one.beside_compute, key=lambda part: one.beside_compute[part], default="")
        kinds[causes.get(largest, "none") if one.kind == "none" else one.kind] = None
    return " ".join(f"{_NEXT[kind]}." for kind in kinds)


def _with(label: str) -> str:
    return "" if label == wording.ALL else f" with {label}"


def _gaps(analysis: Analysis) -> Iterator[str]:
    measured = analysis.measured
    campaigns = [part.campaign for part in measured.each]
    if once := len(analysis.single):
        of = _counted(len(analysis.groups), "point")
        yield f"{once} of {of} measured only once: these figures have no interval."
    left = merge.apart(measured, analysis.groups, analysis.comparisons)
    if left and analysis.throughput:
        names = " and ".join(left)
        yield f"No point of {names} is compared: no other campaign has one with these settings."
    grown = [one for one in analysis.series if one.largest.size > one.baseline_size]
    if hosts := dict.fromkeys(host for series in grown for host in series.hosts):
        yield (
            f"Efficiency is measured against {', '.join(hosts)}, where the smallest points ran: it "
            "is too low where that is faster than other nodes, too high where it is slower."
        )
    ranks = sorted({n for one in campaigns for n in scaling.uneven(one, analysis.scale)})
    if ranks and (analysis.throughput or "").endswith(WORK):
        yield (
            f"Nodes have from {ranks[0]} to {ranks[-1]} ranks: linear growth and efficiency count "
            "ranks, by the job's metric world_size; where that is missing, there are none."
        )
    # Headers of former versions lack `one_host`; only the local backend had such nodes then.
    shared = [c for c in campaigns if (c.backend == "local" if c.one_host is None else c.one_host)]
    if shared and any(one.kind == "compute" for one in analysis.limits):
        yield f"Nodes of the {shared[0].backend} backend share the CPUs of one machine."
    for metric, narrow, count in analysis.stopped():
        yield (
            f"Points were repeated until the interval of {metric} was narrow enough: it was at "
            f"{narrow} of {_counted(count, 'point')}. Such intervals are a little too narrow."
        )
    left_out = (
        (analysis.failed, "run", "failed: in no figure"),
        (analysis.missing, "point", "of the campaign had not ended yet"),
        (measured.broken, "file", "could not be read: left out"),
    )
    for found, what, why in left_out:
        if found:
            yield f"{_counted(len(found), what)} {why}."
    if len({one.made_with.get("the job's files") for one in campaigns} - {None}) > 1:
        yield "The job's files were not the same everywhere: some of a difference may be theirs."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
