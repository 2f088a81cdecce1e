"""Repeats what a report says: the same campaign on another cluster, and how the two compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from gpubed import intervals, located, reading
from gpubed.campaigns.drive import Series
from gpubed.campaigns.file import Campaign, Source, Unusable
from gpubed.intervals import Sample

SUFFIX = "-repeat"
_LARGEST = 1e300
_Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Summary(_Model):
    mean: _Figure
    sd: _Figure | None = None
    n: int


class _Group(_Model):
    id: str
    metrics: dict[str, _Summary | None] = {}


class _Measured(_Model):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,56}$")
    cluster: str = ""
    campaign: dict[str, JsonValue]


class _Report(_Model):
    contract: Literal["gpubed/report/1"] = Field(alias="schema")
    campaign: _Measured
    groups: tuple[_Group, ...] = ()


@dataclass(frozen=True)
class Before:
    """What a report found.

    Attributes:
        source: Its campaign, under a name of its own.
        cluster: The cluster that it was measured on.
        samples: What each point gave, by its id and by metric.
    """

    source: Source
    cluster: str
    samples: Mapping[str, Mapping[str, Sample]]


@dataclass(frozen=True)
class Comparison:
    """A point of a report and the same point now; values are in the metric's unit.

    Attributes:
        before: Mean in the report; None where it has none.
        now: Mean now; None where none has ended well.
        ratio: `now` / `before`.
        low: Lower bound of the ratio's 95 % interval; None without repetitions on both sides.
        high: Its upper bound.
    """

    id: str
    before: float | None
    now: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """What can be said of it."""
        if self.ratio is None:
            return "not measured on both"
        if self.low is None or self.high is None:
            return "unknown: no repetition"
        return "within the noise" if self.low <= 1 <= self.high else "differs"

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def load(path: Path) -> Before:
    """Read a report, and the campaign in it.

    Raises:
        Unusable: It is not what `gpubed report` writes.
    """
    document = reading.file(path, f"give the report.json of a report, not {path}", error=Unusable)
    report = document.json(_Report)
    content = yaml.safe_dump(report.campaign.campaign, sort_keys=False)
    try:
        campaign = Campaign.model_validate(report.campaign.campaign)
    except ValidationError as error:
        raise document.refusal(f"its campaign: {reading.words(error)}") from None
    name = f"{report.campaign.name}{SUFFIX}"
    source = Source(path, name, campaign, located.parse(content.encode()))
    samples = {
        group.id: {
            metric: Sample(found.mean, found.sd, found.n)
            for metric, found in group.metrics.items()
            if found
        }
        for group in report.groups
    }
    return Before(source, report.campaign.cluster, samples)


def compare(before: Before, series: Series, metric: str) -> list[Comparison]:
    """Return how each point of a campaign stands to the same point of a report."""
    return [
        _comparison(
            point.id,
            before.samples.get(point.id, {}).get(metric),
            intervals.sample(series.values(point, metric)),
        )
        for point in series.points
    ]


def _comparison(id_: str, before: Sample | None, now: Sample | None) -> Comparison:
    means = (before.mean if before else None, now.mean if now else None)
    if not (before and now and before.mean > 0 and now.mean > 0):
        return Comparison(id_, *means)
    found = intervals.ratio_of(now, before)
    ratio, low, high = found or (now.mean / before.mean, None, None)
    return Comparison(id_, *means, ratio, low, high)
