"""A campaign's folder: its header (`campaign.json`), and a file for each ended repetition.

Files are written atomically and never removed: a failed repetition's file moves to `points/former`
when its rerun has ended, an unreadable file before the rerun.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpubed.campaigns import matrix
from gpubed.campaigns.file import Source, Stop, key
from gpubed.campaigns.matrix import Point
from gpubed.core import files, reading
from gpubed.core.errors import UsageError
from gpubed.core.reading import Missing, Unreadable, short
from gpubed.core.units import Moment
from gpubed.jobs.jobfile import Value
from gpubed.jobs.metrics import is_number
from gpubed.jobs.runs.record import Commit

SPECIFICATION, _ID = "cluster.yml", "'s id"
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,200}$"  # of a campaign; each --repeat makes it longer
_LONGEST = 1e9  # seconds of a repetition, thirty years; larger values are errors
LARGEST = 1e30  # sums and ratios of larger figures, or of figures below 1 / LARGEST, overflow
Figure = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Key = tuple[str, int]
"""A point's id and its repetition, from 0."""


class Model(BaseModel):
    """A model that ignores unknown keys, which a newer gpubed may write."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Record(Model):
    """The result of one repetition of a point.

    Attributes:
        links: Measured rate of each direction before the run, in bit/s, if the point sets a rate.
        devices: Devices that the job reports, each once; several if its trials differ.
    """

    contract: Literal["gpubed/point/1"] = Field(default="gpubed/point/1", alias="schema")
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    repetition: Annotated[int, Field(ge=0)]
    status: Literal["ok", "failed"]
    reason: str = ""
    settings: dict[str, Any]
    run_id: str
    run_dir: str
    started: str
    seconds: Annotated[float, Field(ge=0, le=_LONGEST)]
    metrics: dict[str, Any]
    image: str = ""
    links: list[dict[str, Any]] = []
    devices: list[str] = []

    @property
    def key(self) -> Key:
        """The point's id and the repetition."""
        return self.id, self.repetition

    @cached_property
    def figures(self) -> dict[str, float]:
        """The metrics that are finite numbers."""
        return {k: v for k, v in self.metrics.items() if is_number(v)}


class Node(Model):
    """A node of the cluster when the campaign was begun; `slots` is the number of ranks on it."""

    name: str
    hardware: str | None = None
    slots: Annotated[int, Field(ge=0)] | None = None
    gpus: int | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.hardware or '?'}, {self.slots} rank(s), {self.gpus} GPU(s))"


class Link(Model):
    """A direction of a link, in bit/s."""

    src: str
    dst: str
    declared_bps: Figure | None = None
    measured_bps: Figure | None = None


class Changed(UsageError):
    """The campaign, the cluster or the software has changed since the campaign was begun."""


class Header(Model):
    """`campaign.json`; former versions did not write `one_host` and `rate_bps`."""

    contract: Literal["gpubed/campaign/1"] = Field(alias="schema")
    name: str = Field(pattern=_NAME)
    job: str = ""
    digest: str = ""
    seed: int | None = None
    repeat: int = 1
    factors: dict[str, list[Value | None]]
    campaign: dict[str, Any] = {}
    cluster: str = ""
    uuid: str | None = None
    backend: str = ""
    one_host: bool | None = None
    recipe: str | None = None
    gpubed: str = ""
    made_with: dict[str, str] = {}
    git: Commit | None = None
    nodes: tuple[Node, ...] = ()
    rate_bps: Figure | None = None
    links: tuple[Link, ...] = ()
    simulated: bool = False
    command: str = ""
    started: Moment

    @property
    def kin(self) -> str:
        """Prefix of the set names that the campaign's runs have."""
        return f"{self.name}.{self.started.isoformat(timespec='milliseconds')}"

    @property
    def declared_bps(self) -> list[float]:
        """The declared rates of the links in bit/s, each once."""
        rates = (self.rate_bps, *(link.declared_bps for link in self.links))
        return sorted({rate for rate in rates if rate})

    @property
    def fixed(self) -> dict[str, Value | None]:
        """The settings that are the same at all points."""
        settings = self.campaign.get("settings")
        items = settings.items() if isinstance(settings, dict) else ()
        return {k: v for k, v in items if isinstance(v, bool | str) or is_number(v)}

    @property
    def stop(self) -> Stop | None:
        """The condition that ends a point's repetitions; None if there is none."""
        try:
            return Stop.model_validate(self.campaign.get("stop"))
        except ValidationError:
            return None

    @cached_property
    def points(self) -> dict[str, dict[str, Value | None]]:
        """The settings of each point, by its id."""
        listed = self.campaign.get("exclude")
        exclude = [it for it in listed if isinstance(it, dict)] if isinstance(listed, list) else []
        found = matrix.combinations(self.factors, exclude)
        return {matrix.identity(settings): settings for settings in found}

    @property
    def with_ranks(self) -> list[str]:
        """The nodes that had slots when the campaign was begun."""
        return [node.name for node in self.nodes if node.slots]

    def counting(self, points: Iterable[Point], *, one_host: bool) -> Header:
        """Return a copy whose `made_with` leaves out nodes without ranks of these points.

        The head always counts: jobs start there, and it serves the shared storage.

        Args:
            one_host: Whether all nodes are on one machine. Node ids do not count then: a node
                that is created again has another id on the same hardware.
        """
        used = {name for point in points for name in self._used(point)}
        used.update(node.name for node in self.nodes[:1])
        aside = tuple(f"{node.name}'s " for node in self.nodes if node.name not in used)
        made = {
            what: value
            for what, value in self.made_with.items()
            if not what.startswith(aside) and not (one_host and what.endswith(_ID))
        }
        return self.model_copy(update={"made_with": made})

    def _used(self, point: Point) -> list[str]:
        names = self.with_ranks
        if point.nodes:
            return names[: point.nodes]
        if not point.ranks:
            return names
        slots = itertools.accumulate((node.slots for node in self.nodes if node.slots), initial=0)
        return [name for name, before in zip(names, slots, strict=False) if before < point.ranks]


@dataclass(frozen=True)
class Folder:
    """A campaign's folder below the cluster's state."""

    path: Path

    def begun(self) -> Header | None:
        """Return the campaign's header, or None if it was not begun.

        Raises:
            Unreadable: The header is damaged, or is missing although there are points.
        """
        header = self.path / "campaign.json"
        try:
            return reading.file(header, "--new keeps the folder under a dated name").json(Header)
        except Missing:
            if any(self._points.glob("*.json")):
                raise
            return None

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the campaign's header, before its first point."""
        files.make(self._points)
        content = json.dumps(header, indent=2, allow_nan=False, default=str)
        files.write(self.path / "campaign.json", content.encode(), durable=True)

    def put_aside(self, now: datetime) -> Path | None:
        """Rename the folder to a dated name, if it exists, and return the new path."""
        if not self.path.exists():
            return None
        aside = self.path.with_name(f"{self.path.name}.{now:%Y%m%d-%H%M%S}")
        self.path.rename(aside)
        return aside

    def ended(self, header: Header) -> tuple[dict[Key, Record], dict[Path, Unreadable]]:
        """Return the repetitions that have ended, failed ones too, and the unusable files."""
        records, faults = dict[Key, Record](), dict[Path, Unreadable]()
        for path in sorted(self._points.glob("*.json")):
            try:
                record = self._read(path, header)
            except Unreadable as error:
                faults[path] = error
            else:
                records[record.key] = record
        return records, faults

    def keep(self, record: Record) -> None:
        """Write a repetition's record durably; an earlier one is kept in `points/former`."""
        files.make(self._points)
        path = self._file(record.key)
        if path.exists():
            shutil.copyfile(path, self._former(path))
        content = record.model_dump_json(by_alias=True, indent=2)
        files.write(path, content.encode(), durable=True)

    def put_points_aside(self, paths: Iterable[Path]) -> None:
        """Move records to `points/former`, so that their repetitions are due again."""
        for path in paths:
            path.rename(self._former(path))

    def _former(self, path: Path) -> Path:
        folder = self._points / "former"
        files.make(folder)
        names = (folder / f"{path.stem}.{number}.json" for number in itertools.count())
        return next(name for name in names if not name.exists())

    @property
    def _points(self) -> Path:
        return self.path / "points"

    def _file(self, key: Key) -> Path:
        return self._points / f"{key[0]}.{key[1]}.json"

    def _read(self, path: Path, header: Header) -> Record:
        document = reading.file(path)
        record = document.json(Record)
        if path != self._file(record.key):
            raise document.refusal(f"it is of {record.id}, repetition {record.repetition}")
        if record.repetition >= header.repeat:
            raise document.refusal(f"the campaign has {header.repeat} repetition(s), from 0")
        if (settings := header.points.get(record.id)) is None:
            raise document.refusal("the campaign has no such point")
        if key(settings) != key(record.settings):
            was, should = json.dumps(record.settings), json.dumps(settings)
            raise document.refusal(f"its settings are {was}, and those of its name are {should}")
        return record


def digest(source: Source, points: Sequence[Point]) -> str:
    """Return the SHA-256 of an expanded campaign; its description does not count."""
    content = {k: v for k, v in source.campaign.content().items() if k != "description"}
    whole = [content, [[point.id, dict(point.settings)] for point in points]]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def require_same(
    begun: Header,
    source: Source,
    points: Sequence[Point],
    uuid: str,
    made_with: Mapping[str, str],
    unseen: tuple[str, ...],
) -> None:
    """Refuse to go on if the campaign, the cluster or the provenance has changed.

    Args:
        made_with: The present facts (`provenance.made_with`), compared with those in `begun`.
        unseen: Prefixes of names that may be missing in `made_with`.

    Raises:
        Changed: Names the change and how to go on.
    """
    hint = (
        f"`--new` begins again and keeps earlier results under a dated name; or run {source.path} "
        "under another file name"
    )
    campaign = f"campaign {source.name}"
    if begun.uuid != uuid:
        other = f"was begun on another cluster of this name (uuid {short(begun.uuid or '')})"
        raise Changed(f"{campaign} {other}", hint)
    if begun.digest != digest(source, points):
        changed = short("; ".join(_changes(begun.campaign, source.campaign.content())), 1000)
        why = changed or "its points differ"
        raise Changed(f"{campaign} has changed since it was begun: {why}", hint)
    others = {
        what: _changed(what, was, made_with.get(what))
        for what, was in begun.made_with.items()
        if was != made_with.get(what) and (what in made_with or not what.startswith(unseen))
    }
    if others:
        # The user cannot undo the change of a machine.
        back = "" if any(what.endswith(_ID) for what in others) else "put it back; or "
        changed = short("; ".join(others.values()), 1000)
        raise Changed(
            f"since {campaign} was begun, this has changed: {changed}; points from before and "
            "after cannot be compared",
            back + hint,
        )


def _changed(what: str, was: str, now: str | None) -> str:
    if _CHECKSUM.fullmatch(was):
        return what
    if now is None:
        return f"{what} was {was} and is not there"
    try:
        old, new = (reading.reply(each, what).json(dict[str, Any]) for each in (was, now))
    except Unreadable:
        return f"{what} was {was} and is {now}"
    return "; ".join(_changes(old, new, f"{what}: "))


def _changes(was: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for name in dict.fromkeys((*was, *now)):
        old, new, where = was.get(name), now.get(name), f"{path}{name}"
        if old != new and all(isinstance(value, dict | None) for value in (old, new)):
            found += _changes(old or {}, new or {}, f"{where}.")
        elif old != new and where != "description":
            # Missing keys have their default.
            texts = ("the default" if it is None else json.dumps(it) for it in (old, new))
            found.append(f"{where} was {' and is '.join(texts)}")
    return found
