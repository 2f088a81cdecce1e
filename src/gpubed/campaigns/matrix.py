"""Expands a campaign file to its points: all combinations of the factors, less the excluded."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubed.campaigns.file import ENVIRONMENT, NODES, OWN, RANKS, RATE, Source, key, text
from gpubed.core.errors import UsageError
from gpubed.core.text import nearest_name
from gpubed.jobs import launchers
from gpubed.jobs.jobfile import Job, Value
from gpubed.nodes import link_rates
from gpubed.nodes.allocation import Allocation
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobBackend

_MOST = 10_000  # points; more are a mistake in the file
_LONGEST = 180  # characters of an id, to which a file name adds a suffix
_RESUMES = "with {} a run resumes from another run's checkpoint, so points are not independent"
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Point:
    """One combination of the factors.

    Attributes:
        id: Its settings in the order of the factors, fit for a file's name.
        settings: The value of each factor.
        arguments: The job's arguments as text: factors and fixed settings.
        link_bps: The links' real rate in bit/s, if they stand for links of another rate.
    """

    id: str
    settings: Mapping[str, Value]
    arguments: Mapping[str, str]
    link_bps: int | None = None

    @property
    def nodes(self) -> int | None:
        """The number of nodes, if the point sets it."""
        return self._count(NODES)

    @property
    def ranks(self) -> int | None:
        """The number of ranks, if the point sets it."""
        return self._count(RANKS)

    @property
    def rate_bps(self) -> int | None:
        """The links' real rate in bit/s; None stands for the declared one."""
        if self.link_bps is not None:
            return self.link_bps
        return link_rates.parse(self.settings[RATE]) if RATE in self.settings else None

    @property
    def environment(self) -> str:
        """The label of the point's environment; may be empty."""
        return text(self.settings.get(ENVIRONMENT, ""))

    def _count(self, factor: str) -> int | None:
        value = self.settings.get(factor)
        return None if value is None else int(value)


def expand(source: Source, job: Job) -> list[Point]:
    """Return the points of a campaign, in the order of its factors' values.

    Raises:
        UsageError: A factor, value or exclusion is invalid; names the line.
    """
    factors, settings = source.campaign.factors, source.campaign.settings
    _check_values(source, job)
    _check_exclusions(source)
    if math.prod(map(len, factors.values())) > _MOST:
        raise source.refusal(("factors",), f"they make more than {_MOST} points")
    for name, environment in source.campaign.environments.items():
        if (chosen := environment.launcher) and chosen not in launchers.names():
            hint = nearest_name(chosen, launchers.names())
            where = ("environments", name, "launcher")
            raise source.refusal(where, f"there is no launcher {chosen!r}", hint)
    fixed = {name: text(value) for name, value in settings.items()}
    points = []
    for varied in combinations(factors, source.campaign.exclude):
        arguments = {name: text(value) for name, value in varied.items() if name not in OWN}
        points.append(Point(identity(varied), varied, {**fixed, **arguments}))
    if not points:
        raise source.refusal(("exclude",), "no point is left")
    try:
        values = job.values(source.campaign.job, points[0].arguments)
    except UsageError as error:
        hint = "name it under settings or factors"
        raise source.refusal(("settings",), error.message, hint) from None
    if resuming := [name for name, it in job.arguments.items() if it.resumes and values[name]]:
        raise source.refusal(("job",), f"job.yml: {_RESUMES.format(resuming[0])}")
    return points


def require_room(
    source: Source, allocation: Allocation, usable: Allocation, *, without: Sequence[str] = ()
) -> None:
    """Refuse points that need more nodes than are usable, or links that cannot be changed.

    `without` names factors that are not checked.
    """
    factors = {name: of for name, of in source.campaign.factors.items() if name not in without}
    backend = registry.backend(allocation.backend)
    if isinstance(backend, JobBackend):
        for name in {NODES, RANKS, RATE} & set(factors):
            raise source.refusal(("factors", name), f"{backend.name} lends no nodes to choose from")
    slots = sum(node.slots for node in usable.nodes)
    _require_at_most(source, NODES, len(usable.with_ranks), "nodes that ranks could start on")
    _require_at_most(source, RANKS, slots, "slots")
    declared = allocation.experiment.rate_bps if allocation.experiment else None
    for place, rate in enumerate(factors.get(RATE, ())):
        if declared is None:
            why, hint = "the cluster has no experiment network with a rate", ""
        elif link_rates.parse(rate) != declared and not backend.shapes_on_nodes:
            why = f"{backend.name} holds its links to the declared {link_rates.compact(declared)}"
            hint = "leave the factor rate out, or declare another rate: gpubed up CLUSTER"
        elif link_rates.parse(rate) > declared:
            why = f"{rate} are more than the declared {link_rates.compact(declared)}"
            hint = "declare the highest rate in cluster.yml: gpubed up CLUSTER"
        else:
            continue
        raise source.refusal(("factors", RATE, place), why, hint)


def rounds(points: Sequence[Point], repeat: int, seed: int) -> Iterator[tuple[int, Point]]:
    """Yield every point once per repetition, in another random order each time.

    Drift over time, such as temperature, thus affects all points alike. The same seed gives the
    same orders, also when a campaign is resumed.
    """
    for repetition in range(repeat):
        order = list(points)
        random.Random(f"{seed}/{repetition}").shuffle(order)  # noqa: S311  # no secret
        yield from ((repetition, point) for point in order)


def _check_values(source: Source, job: Job) -> None:
    campaign = source.campaign
    for name, values in campaign.factors.items():
        for place, value in enumerate(values):
            _check(source, job, ("factors", name, place), name, value)
        texts = [text(value) for value in values]
        # The job reads 32, 32.0 and "032" as the same number.
        if len({*texts} if name in OWN else {*map(job.arguments[name].read, texts)}) < len(texts):
            raise source.refusal(("factors", name), "a value is there twice")
    for name, value in campaign.settings.items():
        _check(source, job, ("settings", name), name, value)
    if campaign.stop and campaign.stop.metric not in job.metrics:
        raise source.refusal(
            ("stop", "metric"),
            f"job {campaign.job} reports no {campaign.stop.metric!r}",
            nearest_name(campaign.stop.metric, job.metrics),
        )
    if campaign.stop and campaign.stop.metric not in job.numbers:
        raise source.refusal(("stop", "metric"), f"{campaign.stop.metric!r} is no number")


def _check(source: Source, job: Job, where: tuple[str | int, ...], name: str, value: Value) -> None:
    if name in (NODES, RANKS):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise source.refusal(where, f"{value!r} is not a number of {name}")
    elif name not in OWN:
        if name not in job.arguments:
            raise source.refusal(
                where[:2],
                f"job {source.campaign.job} has no argument {name!r}",
                nearest_name(name, (*job.arguments, *OWN)),
            )
        if why := job.arguments[name].fault(text(value)):
            raise source.refusal(where, why, f"{name}: {job.arguments[name].help}")
        if job.arguments[name].resumes:
            raise source.refusal(where, _RESUMES.format(name), "leave it out")


def _check_exclusions(source: Source) -> None:
    factors = {name: [*map(text, of)] for name, of in source.campaign.factors.items()}
    for place, excluded in enumerate(source.campaign.exclude):
        for name, value in excluded.items():
            where, values = ("exclude", place, name), factors.get(name)
            if values is None:
                raise source.refusal(where, "it is no factor", nearest_name(name, factors))
            if text(value) not in values:
                why = f"{text(value)} is none of its values"
                raise source.refusal(where, why, f"values: {', '.join(values)}")


def _require_at_most(source: Source, name: str, most: int, what: str) -> None:
    for place, value in enumerate(source.campaign.factors.get(name, ())):
        if int(value) > most:
            raise source.refusal(
                ("factors", name, place),
                f"{value} are more than the {most} {what}",
                "leave it out, or raise `count` in cluster.yml and: gpubed up CLUSTER",
            )


def combinations(
    factors: Mapping[str, Sequence[Any]], exclude: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the factors' values except the excluded ones; 10,000 at most."""
    left_out = [key(values) for values in exclude if values]
    products = itertools.islice(itertools.product(*factors.values()), _MOST)
    for settings in (dict(zip(factors, values, strict=True)) for values in products):
        if not any(excluded <= key(settings) for excluded in left_out):
            yield settings


def identity(settings: Mapping[str, Any]) -> str:
    """Return the id of the point with these settings, which are in the order of the factors."""
    whole = ".".join(f"{name}-{text(value)}" for name, value in settings.items())
    plain = _OTHER.sub("_", whole)
    if plain == whole and len(whole) <= _LONGEST:
        return whole
    # A checksum, as values may differ only in characters that are replaced here.
    return f"{plain[:_LONGEST]}.{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
