"""A campaign's folder: what was asked for, and each repetition of a point that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from gpubed.campaigns import matrix
from gpubed.campaigns.file import Key as Settings
from gpubed.campaigns.file import Stop, key
from gpubed.campaigns.records import Node
from gpubed.configuration.use import Row
from gpubed.core import finite, nearest, reading
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.units import Moment
from gpubed.jobs.main_metric import is_number

Value = bool | int | float | str | None
WITH_OTHERS = "-with-others"
"""How names end of what is about several campaigns, and is kept with the first of them."""
_LARGEST = 1e30  # beyond, or below 1 / it, sums and ratios are no numbers any more
_Finite = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class _Model(BaseModel):
    # Keys that a newer gpubed adds are ignored.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Git(_Model):
    """The commit of the project that measured."""

    commit: str
    clean: bool


class Link(_Model):
    """A direction of a link, in bit/s."""

    src: str
    dst: str
    declared_bps: _Finite | None = None
    measured_bps: _Finite | None = None


class Campaign(_Model):
    """`campaign.json`; former versions did not write `one_host` and `rate_bps`."""

    contract: Literal["gpubed/campaign/1"] = Field(alias="schema")
    name: str
    job: str
    digest: str = ""
    seed: int | None = None
    repeat: int = 1
    factors: dict[str, list[Value]] = {}
    campaign: dict[str, JsonValue] = {}
    cluster: str = ""
    uuid: str | None = None
    backend: str = ""
    one_host: bool | None = None
    recipe: str | None = None
    gpubed: str = ""
    made_with: dict[str, JsonValue] = {}
    git: Git | None = None
    nodes: tuple[Node, ...] = ()
    rate_bps: _Finite | None = None
    links: tuple[Link, ...] = ()
    simulated: bool = False
    command: str = ""
    started: Moment

    @property
    def declared_bps(self) -> list[float]:
        """The rates that links are declared to have, measured or not, each once."""
        return sorted({r for r in (self.rate_bps, *(one.declared_bps for one in self.links)) if r})

    @property
    def fixed(self) -> dict[str, Value]:
        """The settings that are the same at all of its points."""
        given = self.campaign.get("settings")
        listed = given.items() if isinstance(given, dict) else ()
        return {k: v for k, v in listed if isinstance(v, bool | str) or is_number(v)}

    @property
    def job_files(self) -> str:
        """Checksum of the job's files; empty where it was not kept."""
        return str(self.made_with.get("the job's files", ""))

    @cached_property
    def varied(self) -> Settings:
        """Every value of every factor."""
        return frozenset().union(*(key({k: v}) for k, vs in self.factors.items() for v in vs))

    @cached_property
    def excluded(self) -> list[Settings]:
        """The combinations of settings that are excluded from the points."""
        given = self.campaign.get("exclude")
        listed = given if isinstance(given, list) else []
        return [key(one) for one in listed if isinstance(one, dict) and one]

    @property
    def stop(self) -> Stop | None:
        """The condition that ends a point's repetitions; None if there is none."""
        try:
            return Stop.model_validate(self.campaign.get("stop"))
        except ValidationError:
            return None


class Point(_Model):
    """One repetition of a point that has ended."""

    contract: Literal["gpubed/point/1"] = Field(alias="schema")
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    repetition: Annotated[int, Field(ge=0)]
    status: Literal["ok", "failed"]
    reason: str = ""
    settings: dict[str, Value]
    run_id: str | None = None
    run_dir: str | None = None
    started: str | None = None
    seconds: _Finite | None = None
    metrics: dict[str, JsonValue] = {}

    @cached_property
    def figures(self) -> dict[str, float]:
        """The metrics that are finite numbers."""
        return {k: v for k, v in self.metrics.items() if is_number(v)}


class Rank(_Model):
    """What one rank did, on average per step."""

    rank: int | None = None
    host: str = ""
    compute_s: Annotated[float, Field(ge=1 / _LARGEST, le=_LARGEST)]


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
        parts: The campaigns that were put together; empty for a single one.
    """

    folder: Path
    campaign: Campaign
    document: dict[str, Any]
    points: tuple[Point, ...]
    broken: tuple[Broken, ...]
    use: tuple[Row, ...] = ()
    label: str = ""
    factor: str = ""
    parts: tuple[Measured, ...] = ()

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
            nearest.suggestion(wanted, known),
        )
    return wanted


def load(paths: ClusterPaths, name: str) -> Measured:
    """Read a campaign; points that cannot be used are left out, and named.

    Raises:
        Unreadable: What was asked for is not known.
    """
    folder = paths.campaigns / name
    campaign, document = _campaign(folder)
    points: list[Point] = []
    broken: list[Broken] = []
    for path in sorted((folder / "points").glob("*.json")):
        try:
            points.append(_point(path, campaign))
        except Unreadable as error:
            name = "".join(c if c.isprintable() else "?" for c in path.name)
            broken.append(Broken(name, error.message.removeprefix(f"{path} ")))
    points.sort(key=lambda point: (point.id, point.repetition))
    return Measured(folder, campaign, document, tuple(points), tuple(broken))


def ranks(point: Point) -> list[Rank]:
    """Return what each rank did; empty where the job does not tell, or not so that it fits."""
    try:
        return TypeAdapter(list[Rank]).validate_python(point.metrics.get("ranks", []))
    except ValueError:
        return []


def _campaign(folder: Path) -> tuple[Campaign, dict[str, Any]]:
    path = folder / "campaign.json"
    read = reading.file(path, f"put back {path} from a copy, or name another campaign")
    return read.json(Campaign), finite.plain(read.json(dict[str, JsonValue]))


def _point(path: Path, campaign: Campaign) -> Point:
    read = reading.file(path)
    point = read.json(Point)
    if path.name != f"{point.id}.{point.repetition}.json":
        raise read.refusal(f"it is about {point.id}.{point.repetition}, which its name is not")
    if why := _strange(point, campaign):
        raise read.refusal(why)
    return point


def _strange(point: Point, campaign: Campaign) -> str:
    known, settings = campaign.model_fields_set, point.settings
    if "repeat" in known and point.repetition >= campaign.repeat:
        return f"the campaign has {campaign.repeat} repetition(s), numbered from 0"
    if "factors" not in known:
        return ""
    own = key(settings)
    has_all = settings.keys() == campaign.factors.keys() and own <= campaign.varied
    if not has_all or any(out <= own for out in campaign.excluded):
        return "the campaign has no such point"
    should = matrix.identity({name: settings[name] for name in campaign.factors})
    return "" if point.id == should else f"its settings are those of {should}"
