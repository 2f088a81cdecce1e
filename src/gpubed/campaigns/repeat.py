"""Repeats a report's campaign on another cluster, and compares the two."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, JsonValue

from gpubed.campaigns.drive import Series
from gpubed.campaigns.file import Campaign, Key, Source, Unusable, key
from gpubed.campaigns.records import LARGEST, Figure, Header, Model
from gpubed.core import holm, intervals, reading, yaml_lines
from gpubed.core.errors import UsageError
from gpubed.core.holm import Chance
from gpubed.core.intervals import P, Sample
from gpubed.hardware import facts
from gpubed.jobs.jobfile import Value
from gpubed.jobs.runs.compare import Difference, judged
from gpubed.nodes.allocation import Cluster

SUFFIX = "-repeat"
_RANKS = "world_size"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Summary(Model):
    mean: Figure
    sd: Annotated[float, Field(ge=0, le=2 * LARGEST)] | None = None
    n: Annotated[int, Field(ge=1, le=1_000_000)]


class _Group(Model):
    settings: dict[str, Value]
    metrics: dict[str, _Summary | None] = Field(default={})


class _Report(Model):
    contract: Literal["gpubed/report/1"] = Field(alias="schema")
    campaign: Header
    environments: tuple[JsonValue, ...] = ()
    simulated: bool = False
    emulated: bool = False
    groups: tuple[_Group, ...] = ()


@dataclass(frozen=True)
class Before:
    """The campaign of a report."""

    source: Source  # named with `SUFFIX`
    header: Header
    simulated: bool
    # By settings and metric. Ids depend on the order of the factors, which other programs change.
    samples: Mapping[Key, Mapping[str, Sample]]


@dataclass(frozen=True)
class Comparison:
    """Compares a point of a report with the same point now; means are in the metric's unit.

    Attributes:
        spread: Whether the values of each side vary.
        ranks: Number of ranks on each side, if they differ; nothing is compared then.
    """

    id: str
    before: float | None
    now: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    runs: tuple[int, int] = (1, 1)
    spread: tuple[bool, bool] = (True, True)
    p: P | None = None
    chance: Chance | None = None
    ranks: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """The result of the comparison in words."""
        if self.before is None or self.now is None:
            return "not measured on both"
        if self.ranks:
            return f"{self.ranks[0]:g} rank(s) there, {self.ranks[1]:g} here"
        return judged(self.chance, self.runs, self.spread, same=self.before == self.now)

    def document(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        own = asdict(self)
        del own["spread"], own["p"]  # `p` is in `chance`
        return {**own, "verdict": self.verdict}


def load(path: Path) -> Before:
    """Read a report, and the campaign in it.

    Raises:
        Unusable: The file is not a report of `gpubed report`.
    """
    document = reading.file(path, "use the report.json beside a report's page", error=Unusable)
    report = document.json(_Report)
    if report.environments:
        raise UsageError(
            f"{path} is the report of {len(report.environments)} campaigns",
            "write a report of each campaign, and repeat that: gpubed report CLUSTER CAMPAIGN",
        )
    if report.emulated:
        raise UsageError(
            f"{path} is of a rehearsal", "gpubed rehearse CLUSTER with its options, and --new"
        )
    content = yaml.safe_dump(report.campaign.campaign, sort_keys=False).encode()
    campaign = reading.reply(content, f"the campaign in {path}", error=Unusable).yaml(Campaign)
    source = Source(path, f"{report.campaign.name}{SUFFIX}", campaign, yaml_lines.parse(content))
    samples = {
        key(group.settings): {
            metric: Sample(found.mean, found.sd, found.n)
            for metric, found in group.metrics.items()
            if found
        }
        for group in report.groups
    }
    simulated = report.simulated or report.campaign.simulated
    return Before(source, report.campaign, simulated, samples)


def require_comparable(before: Before, cluster: Cluster) -> None:
    """Refuse to compare figures of real GPUs with those of simulated ones."""
    nodes = facts.of_cluster(cluster.paths.facts, cluster.allocation).values()
    now = any(node.simulated for node in nodes)
    if now == before.simulated:
        return
    report = before.source.path
    why = (
        f"{cluster.name} simulates GPUs, and {report} has figures of real ones"
        if now
        else f"{report} has figures of simulated GPUs, and {cluster.name} simulates none"
    )
    raise UsageError(f"{why}: their ratio says nothing", "repeat it on a cluster of its kind")


def differences(before: Before, now: Header | None) -> list[Difference]:
    """Return the differences in provenance between a report's campaign and the present one."""
    if now is None:
        return []
    pairs = zip(_provenance(before.header, now), _provenance(now, before.header), strict=True)
    return [Difference(name, old, new) for (name, old), (_, new) in pairs if old != new]


def _provenance(header: Header, other: Header) -> Iterator[tuple[str, str]]:
    """Yield facts that both headers have, by name, with the values of the first."""
    yield "cluster", f"{header.cluster} ({(header.uuid or '')[:8]})"
    yield "backend", header.backend
    yield "nodes", "; ".join(map(str, header.nodes))
    yield "recipe", header.recipe or ""
    if "gpubed" not in header.made_with or "gpubed" not in other.made_with:
        yield "gpubed", header.gpubed
    for name in sorted(header.made_with.keys() & other.made_with.keys()):
        value = header.made_with[name]
        yield name, value[:8] if _SHA256.fullmatch(value) else value


def compare(before: Before, series: Series, metric: str) -> list[Comparison]:
    """Compare each point with the same one of a report; p-values are corrected (Holm)."""
    found = []
    for point in series.points:
        samples = before.samples.get(key(point.settings), {})
        values, ranks = (
            (samples.get(name), intervals.sample(series.values(point, name)))
            for name in (metric, _RANKS)
        )
        sizes = (ranks[0].mean, ranks[1].mean) if ranks[0] and ranks[1] else (0.0, 0.0)
        differ = sizes if sizes[0] != sizes[1] else None  # the nodes have fewer GPUs, for example
        found.append(_comparison(point.id, *values, differ))
    chances = holm.corrected([each.p for each in found])
    return [replace(each, chance=chance) for each, chance in zip(found, chances, strict=True)]


def _comparison(
    id_: str, before: Sample | None, now: Sample | None, ranks: tuple[float, float] | None
) -> Comparison:
    means = (before.mean if before else None, now.mean if now else None)
    if not (before and now) or ranks:
        return Comparison(id_, *means, ranks=ranks)
    plain = now.mean / before.mean if before.mean > 0 and now.mean > 0 else math.nan
    found = intervals.ratio_of(now, before)
    ratio, low, high, p = found or (plain if math.isfinite(plain) else None, None, None, None)
    spread = bool(before.sd), bool(now.sd)
    return Comparison(id_, *means, ratio, low, high, (before.n, now.n), spread, p)
