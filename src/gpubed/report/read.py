"""Reads a campaign's folder: its header, and the repetitions that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, TypeAdapter

from gpubed.campaigns import predictions
from gpubed.campaigns.predictions import Foretold
from gpubed.campaigns.records import LARGEST, Folder, Header, Model, Record
from gpubed.configuration.usage import Row
from gpubed.core import reading
from gpubed.core.errors import UsageError
from gpubed.core.files import without_nan
from gpubed.core.paths import ClusterPaths
from gpubed.core.text import nearest_name

Value = bool | int | float | str | None
WITH_OTHERS = "-with-others"
"""Suffix of the names of common reports, which are kept with the first of their campaigns."""


class Rank(Model):
    """A rank's compute time in seconds, on average per step."""

    rank: int | None = None
    host: str = ""
    compute_s: Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]


@dataclass(frozen=True)
class Broken:
    """A file that could not be read as a record."""

    file: str
    reason: str


@dataclass(frozen=True)
class Measured:
    """The results of a campaign, or of several merged campaigns.

    Attributes:
        document: `campaign.json`, with keys that this version does not know.
        use: Each user's use of the nodes in the 24 hours before the report.
        label: The campaign's label among several; empty for a single campaign.
        factor: The setting whose value is the label of a point's campaign.
        predicted: Predictions by the id of a point, from before its first run.
    """

    folder: Path
    campaign: Header
    document: dict[str, Any]
    points: tuple[Record, ...]
    broken: tuple[Broken, ...]
    use: tuple[Row, ...] = ()
    label: str = ""
    factor: str = ""
    parts: tuple[Measured, ...] = ()
    predicted: Mapping[str, Foretold] = field(default_factory=dict)

    @property
    def each(self) -> tuple[Measured, ...]:
        """The merged campaigns; for a single campaign, itself."""
        return self.parts or (self,)

    @property
    def suffix(self) -> str:
        """Suffix of the names of a common report's files; empty for a single campaign."""
        return WITH_OTHERS if self.parts else ""

    def of(self, settings: Mapping[str, Value]) -> Measured:
        """Return the campaign that a point with these settings belongs to."""
        label = settings.get(self.factor)
        return next((part for part in self.parts if part.label == label), self)

    @property
    def simulated(self) -> bool:
        """Whether GPUs were simulated at any point."""
        return self.campaign.simulated or any(p.metrics.get("simulated") for p in self.points)

    @property
    def emulated(self) -> bool:
        """Whether compute was emulated in any of it: a rehearsal."""
        return any(p.metrics.get("emulated") for p in self.points)

    @property
    def mark(self) -> str:
        """What stands behind titles where no real GPU computed; else empty."""
        if self.emulated:
            return "emulated compute"
        return "simulated GPUs" if self.simulated else ""


def names(paths: ClusterPaths) -> list[str]:
    """Return the campaigns that were started on a cluster."""
    return sorted(path.parent.name for path in paths.campaigns.glob("*/campaign.json"))


def chosen(paths: ClusterPaths, name: str | None) -> str:
    """Return the name of a campaign, given its name, file or folder; by default the newest.

    Raises:
        Unreadable: A campaign's header, which has its time, cannot be read.
    """
    measured = names(paths)
    if not measured:
        raise UsageError(
            f"no campaign was run on {paths.name} yet", f"gpubed bench {paths.name} smoke"
        )
    if name is None:
        return max(measured, key=lambda name: _campaign(paths.campaigns / name)[0].started)
    given = Path(name)
    by_file = given.suffix in (".yml", ".yaml")
    wanted = given.stem if by_file else given.name
    folder = paths.campaigns / wanted
    # Another path may be that of a campaign of this name on another cluster.
    is_name = by_file or given.parent in (Path(), Path("campaigns"))
    if wanted not in measured or not (is_name or (given.exists() and given.samefile(folder))):
        raise UsageError(
            f"there is no campaign {name!r} in {paths.campaigns}", nearest_name(wanted, measured)
        )
    return wanted


def load(paths: ClusterPaths, name: str) -> Measured:
    """Read a campaign; unreadable records are listed in `broken`.

    Raises:
        Unreadable: The campaign's header cannot be read, or the predictions were changed.
    """
    folder = paths.campaigns / name
    campaign, document = _campaign(folder)
    records, faults = Folder(folder).ended(campaign)
    broken = (
        Broken(reading.short(path.name), error.message.removeprefix(f"{path} "))
        for path, error in faults.items()
    )
    points, told = tuple(records[k] for k in sorted(records)), predictions.read(folder)
    return Measured(folder, campaign, document, points, tuple(broken), predicted=told)


def ranks(point: Record) -> list[Rank]:
    """Return the compute times of the ranks; empty if the job reports none, or invalid ones."""
    try:
        return TypeAdapter(list[Rank]).validate_python(point.metrics.get("ranks", []))
    except ValueError:
        return []


def _campaign(folder: Path) -> tuple[Header, dict[str, Any]]:
    path = folder / "campaign.json"
    read = reading.file(path, f"put back {path} from a copy, or name another campaign")
    return read.json(Header), without_nan(read.json(dict[str, JsonValue]))
