"""How far predictions that were written before a campaign were from what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpubed.campaigns.predictions import Foretold
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from gpubed.report import groups, read
from gpubed.report.groups import Group
from gpubed.report.read import Broken, Measured

METRIC = "images_per_s"


@dataclass(frozen=True)
class Residual:
    """A point's mean of all repetitions beside its prediction, in images/s."""

    measured: float
    predicted: Foretold
    group: Group
    cluster: str
    campaign: str

    @property
    def difference(self) -> float:
        """Predicted less measured, as a share of measured."""
        return self.predicted.images_per_s / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured rate is in the 90 % interval of the prediction."""
        return self.predicted.low <= self.measured <= self.predicted.high

    def document(self) -> dict[str, Any]:
        """Return the residual for JSON."""
        told = self.predicted
        return {
            "cluster": self.cluster,
            "campaign": self.campaign,
            "id": self.group.id,
            "measured": self.measured,
            "predicted": told.images_per_s,
            "low": told.low,
            "high": told.high,
            "difference": self.difference,
            "inside": self.is_inside,
        }


def of(measured: Measured, found: Iterable[Group]) -> Iterator[Residual]:
    """Yield the residuals of a campaign's points."""
    for group in found:
        mean, told = group.mean(METRIC), measured.predicted.get(group.id)
        if told and mean and mean > groups.LEAST:
            campaign = measured.of(group.settings).campaign
            yield Residual(mean, told, group, campaign.cluster, campaign.name)


def history(project: Project) -> tuple[list[Residual], list[str], list[Broken]]:
    """Return the residuals of all campaigns of a controller.

    Returns:
        The residuals; the campaigns without written predictions, as `cluster/campaign`; and what
        could not be read.
    """
    found, without, broken = list[Residual](), list[str](), list[Broken]()
    for paths in map(project.cluster, project.known()):
        for name in read.names(paths):
            try:
                measured = read.load(paths, name)
            except Unreadable as error:
                broken.append(Broken(f"{paths.name}/{name}", error.message))
                continue
            broken += measured.broken
            found += of(measured, groups.made(measured))
            without += [] if measured.predicted else [f"{paths.name}/{name}"]
    return found, without, broken


def summary(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Return the number of residuals, the median of their absolute size, and the coverage."""
    sizes = [abs(one.difference) for one in residuals]
    inside = sum(one.is_inside for one in residuals)
    return {
        "points": len(sizes),
        "median_difference": statistics.median(sizes) if sizes else None,
        "inside": inside,
        "coverage": inside / len(sizes) if sizes else None,
    }


def words(residuals: Sequence[Residual]) -> str:
    """Say how good the predictions were; empty without any."""
    found = summary(residuals)
    if not residuals:
        return ""
    worst = max(residuals, key=lambda one: abs(one.difference))
    return (
        f"Predictions differ from what was measured by {found['median_difference']:.1%} in the "
        f"median, {worst.difference:+.1%} at worst ({worst.group.named()}); {found['inside']} of "
        f"{found['points']} points are inside the 90 % interval."
    )
