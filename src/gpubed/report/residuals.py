"""How far predictions that were written before a campaign were from what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpubed.core.paths import Project
from gpubed.report import groups, read
from gpubed.report.groups import Group
from gpubed.report.read import Measured

METRIC = "images_per_s"


@dataclass(frozen=True)
class Residual:
    """A point's prediction with its 90 % interval, beside the mean of its repetitions; images/s."""

    campaign: str  # with its cluster: lab/smoke
    point: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Predicted less measured, as a share of measured."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured rate is in the interval."""
        return self.low <= self.measured <= self.high

    def document(self) -> dict[str, Any]:
        """Return the residual for JSON."""
        return asdict(self) | {"difference": self.difference, "inside": self.inside}


def of(measured: Measured, found: Iterable[Group]) -> Iterator[Residual]:
    """Yield the residuals of a campaign's points."""
    campaign = f"{measured.folder.parents[1].name}/{measured.campaign.name}"
    for group in found:
        mean, told = group.mean(METRIC), measured.predicted.get(group.id)
        if told and mean and mean > groups.LEAST:
            rates = mean, told.images_per_s, told.low, told.high
            yield Residual(campaign, group.named(), *rates)


def history(project: Project) -> tuple[list[Residual], list[str]]:
    """Return the residuals of all campaigns of a controller, and campaigns without predictions."""
    found, without = list[Residual](), list[str]()
    for paths in map(project.cluster, project.known()):
        for name in read.names(paths):
            measured = read.load(paths, name)
            found += of(measured, groups.made(measured))
            without += [] if measured.predicted else [f"{paths.name}/{name}"]
    return found, without


def summary(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Return how many there are, the median of their absolute differences, and the coverage."""
    sizes = [abs(one.difference) for one in residuals]
    return {
        "points": len(sizes),
        "median_difference": statistics.median(sizes) if sizes else None,
        "coverage": statistics.fmean(one.inside for one in residuals) if sizes else None,
    }


def words(residuals: Sequence[Residual]) -> str:
    """Say how good the predictions were; empty without any."""
    found = summary(residuals)
    if not residuals:
        return ""
    worst = max(residuals, key=lambda one: abs(one.difference))
    return (
        f"Predictions differ from what was measured by {found['median_difference']:.1%} in the "
        f"median, {worst.difference:+.1%} at worst ({worst.point}); the 90 % interval has "
        f"{found['coverage']:.0%} of {found['points']} points."
    )
