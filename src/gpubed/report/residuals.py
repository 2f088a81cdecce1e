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
from gpubed.report.read import Measured

METRIC = "images_per_s"


@dataclass(frozen=True)
class Residual:
    """A point's prediction beside the mean of its repetitions, in images/s."""

    campaign: str  # with its cluster: lab/smoke
    group: Group
    measured: float
    predicted: Foretold

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
        told = self.predicted.model_dump(include={METRIC, "low", "high"})
        told |= {"predicted": told.pop(METRIC), "measured": self.measured}
        told |= {"campaign": self.campaign, "id": self.group.id}
        return told | {"difference": self.difference, "inside": self.is_inside}


def of(measured: Measured, found: Iterable[Group]) -> Iterator[Residual]:
    """Yield the residuals of a campaign's points."""
    for group in found:
        mean, told = group.mean(METRIC), measured.predicted.get(group.id)
        if told and mean and mean > groups.LEAST:
            campaign = f"{measured.folder.parents[1].name}/{measured.campaign.name}"
            yield Residual(campaign, group, mean, told)


def history(project: Project) -> tuple[list[Residual], list[str]]:
    """Return the residuals of all campaigns of a controller, and why others are left out."""
    found, left_out = list[Residual](), list[str]()
    for paths in map(project.cluster, project.known()):
        for name in read.names(paths):
            try:
                measured = read.load(paths, name)
            except Unreadable as error:
                left_out.append(error.message)
                continue
            found += of(measured, groups.made(measured))
            left_out += [
                f"{one.file} of {paths.name}/{name}: {one.reason}" for one in measured.broken
            ]
            if not measured.predicted:
                left_out.append(f"{paths.name}/{name} began without predictions")
    return found, left_out


def summary(residuals: Sequence[Residual]) -> dict[str, Any]:
    """Return how many there are, the median of their absolute differences, and the coverage."""
    sizes = [abs(one.difference) for one in residuals]
    inside = [one.is_inside for one in residuals]
    return {
        "points": len(sizes),
        "median_difference": statistics.median(sizes) if sizes else None,
        "coverage": statistics.fmean(inside) if sizes else None,
    }


def words(residuals: Sequence[Residual]) -> str:
    """Say how good the predictions were; empty without any."""
    found = summary(residuals)
    if not residuals:
        return ""
    worst = max(residuals, key=lambda one: abs(one.difference))
    return (
        f"Predictions differ from what was measured by {found['median_difference']:.1%} in the "
        f"median, {worst.difference:+.1%} at worst ({worst.group.named()}); the 90 % interval has "
        f"{found['coverage']:.0%} of {found['points']} points."
    )
