"""A campaign's folder: what was asked for, and each repetition of a point that has ended."""

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
"""How names end of what is about several campaigns, and is kept with the first of them."""


class Rank(Model):
    """What one rank did, on average per step."""

    rank: int | None = None
    host: str = ""
    compute_s: Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]


@dataclass(frozen=True)
class Broken:
    """A file that could not be used."""

    file: str
    reason: str


@dataclass(frozen=True)
class Measured:
    """The results of a campaign, or of several that were put together.

    Attributes:
        document: `campaign.json`, with keys that this version does not know.
        use: Each user's use of the nodes in the 24 hours before the report.
        label: The campaign's label among several; empty if it is alone.
        factor: The setting that names a point's campaign by its label.
        predicted: What points were predicted to give before the first of them ran, by id.
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
        """The campaigns that are in it: of one, itself."""
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
        """Whether GPUs were simulated in any of it."""
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
    """Return the campaign that is meant: by its name, its file, or its folder; else the newest.

    Raises:
        Unreadable: Which one is the newest cannot be told.
    """
    known = names(paths)
    if not known:
        raise UsageError(
            f"no campaign was run on {paths.name} yet", f"gpubed bench {paths.name} smoke"
        )
    if name is None:
        return max(known, key=lambda one: _campaign(paths.campaigns / one)[0].started)
    given = Path(name)
    by_file = given.suffix in (".yml", ".yaml")
    wanted = given.stem if by_file else given.name
    folder = paths.campaigns / wanted
    # A path may lead to a campaign of this name on another cluster.
    meant = by_file or given.parent in (Path(), Path("campaigns"))
    if wanted not in known or not (meant or (given.exists() and given.samefile(folder))):
        raise UsageError(
            f"there is no campaign {name!r} in {paths.campaigns}",
            nearest_name(wanted, known),
        )
    return wanted


def load(paths: ClusterPaths, name: str) -> Measured:
    """Read a campaign; points that cannot be used are left out, and named.

    Raises:
        Unreadable: What was asked for is not known.
    """
    folder = paths.campaigns / name
    campaign, document = _campaign(folder)
    records, faults = Folder(folder).ended(campaign)
    broken = [
        Broken(reading.short(path.name), error.message.removeprefix(f"{path} "))
        for path, error in faults.items()
    ]
    predicted: Mapping[str, Foretold] = {}
    try:
        predicted = predictions.read(folder)
    except reading.Unreadable as error:
        broken.append(Broken(predictions.FILE, error.message))
    points = tuple(records[key] for key in sorted(records))
    return Measured(folder, campaign, document, points, tuple(broken), predicted=predicted)


def ranks(point: Record) -> list[Rank]:
    """Return what each rank did; empty where the job does not tell, or not so that it fits."""
    try:
        return TypeAdapter(list[Rank]).validate_python(point.metrics.get("ranks", []))
    except ValueError:
        return []


def _campaign(folder: Path) -> tuple[Header, dict[str, Any]]:
    path = folder / "campaign.json"
    read = reading.file(path, f"put back {path} from a copy, or name another campaign")
    return read.json(Header), without_nan(read.json(dict[str, JsonValue]))
