"""Merges campaigns of one job into one, with a factor that names each point's campaign."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpubed.campaigns.file import ENVIRONMENT, RANKS, RATE, Key, key
from gpubed.campaigns.records import Header, Record
from gpubed.core import units
from gpubed.core.errors import UsageError
from gpubed.jobs.metrics import LINK, WORK, main_metric
from gpubed.report import groups, wording
from gpubed.report.groups import Group
from gpubed.report.read import WITH_OTHERS, Measured, Value
from gpubed.report.scaling import Comparison

_WORLD = "world_size"  # the metric with the number of ranks
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def put(campaigns: Sequence[Measured]) -> Measured:
    """Return several campaigns as one, with a factor for the campaign.

    Points also get those fixed settings of their campaign that differ in other campaigns, and their
    number of ranks if they set neither nodes nor ranks. All campaigns are compared with the first.

    Raises:
        UsageError: A campaign is listed twice, or the campaigns have different jobs, simulated and
            real GPUs, or no metric in common.
    """
    first, labels = campaigns[0], _labels(campaigns)
    parts = tuple(replace(one, label=label) for one, label in zip(campaigns, labels, strict=True))
    _require_comparable(parts)
    taken = {name for part in parts for name in (*part.campaign.factors, *part.campaign.fixed)}
    factor = "cluster" if ENVIRONMENT in taken else ENVIRONMENT
    fixed, sizes = _fixed(parts), [_sizes(part) for part in parts]
    points = [
        _point(point, factor, part.label, own, size)
        for part, own, size in zip(parts, fixed, sizes, strict=True)
        for point in part.points
    ]
    # None stands for a campaign that has no such factor.
    names = dict.fromkeys(name for point in points for name in point.settings)
    values = {n: {key({n: v}): v for v in (p.settings.get(n) for p in points)} for n in names}
    factors = {name: list(of.values()) for name, of in values.items()} | {factor: [*labels]}
    document: dict[str, Any] = {
        "name": f"{first.campaign.name}{WITH_OTHERS}",
        "job": first.campaign.job,
        "factors": factors,
        "campaign": {},  # each has its own
        "cluster": ", ".join(labels),
        "uuid": first.campaign.uuid,
        "simulated": first.simulated,
    }
    schema = first.campaign.contract
    return Measured(
        first.folder,
        # Not validated again: folders, whose names are in the labels, may have invalid UTF-8.
        Header.model_construct(contract=schema, started=first.campaign.started, **document),
        {"schema": schema, **document, "started": first.document["started"]},
        tuple(points),
        tuple(replace(b, file=f"{part.label}: {b.file}") for part in parts for b in part.broken),
        tuple(row for part in parts for row in part.use),
        factor=factor,
        parts=parts,
    )


def shared(measured: Measured, metrics: Iterable[str]) -> list[str]:
    """Return the metrics that all campaigns with successful points report."""
    each = [numbers for part in measured.each if (numbers := _numbers(part))]
    return [name for name in metrics if all(name in numbers for numbers in each)]


def comparisons(measured: Measured, found: Iterable[Group], metric: str) -> Iterator[Comparison]:
    """Compare each campaign's points with the equal points of the first campaign that has them.

    Points are equal if all settings and the number of ranks are; the number of nodes may differ. If
    no campaign varies the links' rate, it counts as a property of the cluster, and may differ.
    """
    varied = any(len(p.campaign.factors.get(RATE, ())) > 1 for p in measured.parts)
    factor = measured.factor
    aside = (factor, *wording.SCALES, *(() if varied else (RATE,)))
    first: dict[tuple[Key, object], Group] = {}
    for group in found:
        if not (group.mean(metric) or 0) > groups.LEAST:
            continue
        base = first.setdefault((key(group.others(*aside)), _size(group)), group)
        value, against = group.settings[factor], base.settings[factor]
        if value != against:
            ratio = groups.ratio(group, base, metric)
            yield Comparison(factor, value, against, _common(group, base, factor), ratio)


def apart(measured: Measured, found: Iterable[Group], compared: Iterable[Comparison]) -> list[str]:
    """Return the labels of campaigns of which no point is compared with another campaign."""
    pairs = [(one.value, one.against) for one in compared if one.factor == measured.factor]
    ended = (group for group in found if measured.parts and group.points)
    labels = dict.fromkeys(group.settings[measured.factor] for group in ended)
    return [str(label) for label in labels if not any(label in pair for pair in pairs)]


def _size(group: Group) -> object:
    """Return a point's size: the ranks that the job reports, else its nodes and ranks settings."""
    return group.mean(_WORLD) or tuple(group.settings.get(name) for name in wording.SCALES)


def _common(group: Group, base: Group, factor: str) -> Group:
    there = key(base.settings)
    same = {k: v for k, v in group.settings.items() if k == factor or key({k: v}) <= there}
    if not set(wording.SCALES) & set(same) and (size := group.mean(_WORLD)):
        same[RANKS] = round(size)
    return replace(group, settings=same, varied=(*group.varied, RANKS))


def _labels(campaigns: Sequence[Measured]) -> list[str]:
    # The folders' names, as users type them: a copied campaign names another cluster inside.
    clusters = [one.folder.parents[1].name for one in campaigns]
    names = [
        cluster if clusters.count(cluster) == 1 else f"{cluster}/{one.folder.name}"
        for one, cluster in zip(campaigns, clusters, strict=True)
    ]
    for place, campaign in enumerate(one.campaign for one in campaigns):
        if len(rates := campaign.declared_bps) == 1 and RATE not in campaign.factors:
            names[place] += f" ({units.format_rate(rates[0])})"
    return names


def _require_comparable(parts: Sequence[Measured]) -> None:
    folders = [part.folder for part in parts]
    for part in parts:
        if folders.count(part.folder) > 1:
            twice = f"campaign {part.folder.name} of cluster {part.folder.parents[1].name}"
            raise UsageError(f"{twice} is there twice", "name each campaign once")
    _require_one(parts, "they are of several jobs", lambda part: part.campaign.job)
    kinds = "figures of simulated and real GPUs cannot be compared"
    _require_one(parts, kinds, lambda part: f"{'' if part.simulated else 'not '}simulated")
    kinds = "figures of emulated compute and others make no ratio"
    _require_one(parts, kinds, lambda part: f"{'' if part.emulated else 'not '}emulated")
    ended = [part for part in parts if _numbers(part)]
    if ended and not set.intersection(*(set(_figures(part)) for part in ended)):
        why = "they have no rate or other figure in common"
        _require_one(ended, why, lambda part: main_metric(None, _figures(part)))


def _require_one(parts: Iterable[Measured], why: str, what: Callable[[Measured], str]) -> None:
    found = {part.label: what(part) for part in parts}
    if len(set(found.values())) > 1:
        listed = "; ".join(f"{label}: {said}" for label, said in found.items())
        raise UsageError(
            f"these campaigns make no report together: {why} ({listed})",
            "gpubed report CLUSTER CAMPAIGN --with OTHER/CAMPAIGN names campaigns of one job",
        )


def _numbers(measured: Measured) -> dict[str, None]:
    good = (point for point in measured.points if point.status == "ok")
    return dict.fromkeys(name for point in good for name in point.figures)


def _figures(measured: Measured) -> list[str]:
    numbers = list(_numbers(measured))
    rates = [name for name in numbers if name.endswith((WORK, LINK))]
    return rates or numbers


def _fixed(parts: Sequence[Measured]) -> list[dict[str, Value]]:
    """Return each campaign's fixed settings that another campaign varies or fixes differently."""
    every = [part.campaign.fixed for part in parts]
    alike = frozenset.intersection(*map(key, every))
    varied = {name for part in parts for name in part.campaign.factors}
    return [
        {name: v for name, v in fixed.items() if name in varied or not key({name: v}) <= alike}
        for fixed in every
    ]


def _sizes(measured: Measured) -> dict[str, int]:
    if set(wording.SCALES) & set(measured.campaign.factors):
        return {}
    told = {p.id: p.figures.get(_WORLD, 0) for p in measured.points if p.status == "ok"}
    return {id_: round(size) for id_, size in told.items() if size >= 1 and size == round(size)}


def _point(
    point: Record, factor: str, label: str, fixed: Mapping[str, Value], sizes: Mapping[str, int]
) -> Record:
    place, size = {factor: label}, {RANKS: sizes[point.id]} if point.id in sizes else {}
    update: dict[str, Any] = {
        "id": f"{factor}-{_OTHER.sub('_', label).strip('_')}.{point.id}",
        "settings": {**place, **point.settings, **fixed, **size, **place},
    }
    ranks = point.metrics.get("ranks")
    if isinstance(ranks, list):  # host names such as node-0 are the same on several clusters
        told = [
            {**rank, "host": f"{rank.get('host') or 'a rank'} of {label}"}
            for rank in ranks
            if isinstance(rank, dict)
        ]
        update["metrics"] = {**point.metrics, "ranks": told}
    return point.model_copy(update=update)
