"""A campaign's folder: its header (`campaign.json`), and a file for each ended repetition.

Files are written atomically. A failed repetition's file moves to `points/former` when its rerun has
ended, an unreadable one before the rerun; nothing is ever removed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.campaigns.file import Source
from gpubed.campaigns.matrix import Point
from gpubed.core import files, reading, wording
from gpubed.core.errors import UsageError
from gpubed.core.reading import Missing, Unreadable, short
from gpubed.spec import clusterspec

SPECIFICATION, _ID = "cluster.yml", "'s id"
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_LONGEST = 1e9  # seconds of a repetition (thirty years); more is damage
Key = tuple[str, int]
"""A point's id and its repetition, from 0."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Record(_Model):
    """The result of one repetition of a point.

    Attributes:
        started: In UTC, ISO 8601.
        image: Id of the image that ranks ran in; empty without one.
        links: Rate of each direction before it, in bit/s, if links were limited to a rate.
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


class Node(_Model):
    """A node of the cluster, as it was when a campaign was begun; slots are for ranks."""

    name: str
    hardware: str | None = None
    slots: Annotated[int, Field(ge=0)] | None = None
    gpus: int | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.hardware or '?'}, {self.slots} rank(s), {self.gpus} GPU(s))"


class Changed(UsageError):
    """What points are made with has changed since the campaign was begun."""


class Begun(_Model):
    """The part of `campaign.json` that resuming needs."""

    contract: Literal["gpubed/campaign/1"] = Field(alias="schema")
    digest: str
    campaign: dict[str, Any]
    uuid: str
    nodes: tuple[Node, ...]
    started: str = ""
    made_with: dict[str, str] = {}

    @property
    def with_ranks(self) -> list[str]:
        """The nodes that had slots when the campaign was begun."""
        return [node.name for node in self.nodes if node.slots]

    def counting(self, points: Iterable[Point], *, one_host: bool) -> Begun:
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
        able = self.with_ranks
        if point.nodes:
            return able[: point.nodes]
        if not point.ranks:
            return able
        slots = itertools.accumulate((node.slots for node in self.nodes if node.slots), initial=0)
        return [name for name, before in zip(able, slots, strict=False) if before < point.ranks]


@dataclass(frozen=True)
class Folder:
    """A campaign's folder below the cluster's state."""

    path: Path

    def begun(self) -> Begun | None:
        """Return the campaign's header, or None if it was not begun.

        Raises:
            Unreadable: The header is damaged, or is missing although there are points.
        """
        header = self.path / "campaign.json"
        try:
            return reading.file(header, "--new keeps the folder under a dated name").json(Begun)
        except Unreadable as error:
            # An empty header, left by a power cut, loses nothing if there are no points.
            empty = header.is_file() and not header.stat().st_size
            gone = isinstance(error, Missing) or empty
            if not gone or self._files():
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

    def ended(self, points: Iterable[Point] | None = None) -> dict[Key, Record]:
        """Return every repetition that has ended, well or not.

        Args:
            points: The campaign's points; if given, records of others are refused.

        Raises:
            Unreadable: A record is damaged, or belongs to none of these points.
        """
        of = None if points is None else {point.id: dict(point.settings) for point in points}
        found = (self._read(path, of) for path in self._files())
        return {record.key: record for record in found}

    def unreadable(self, points: Iterable[Point]) -> list[Path]:
        """Return the files of points that `ended` would refuse."""
        of, found = {point.id: dict(point.settings) for point in points}, []
        for path in self._files():
            try:
                self._read(path, of)
            except Unreadable:
                found.append(path)
        return found

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

    def _files(self) -> list[Path]:
        """Return the files of points."""
        if os.path.lexists(self._points) and not self._points.is_dir():
            points = quote(str(self._points))
            aside = f"mv {points} {points}.former"
            raise Unreadable(f"{self._points} is no folder, and repetitions are kept in it", aside)
        return sorted(self._points.glob("*.json"))

    def _file(self, key: Key) -> Path:
        return self._points / f"{key[0]}.{key[1]}.json"

    def _read(self, path: Path, points: Mapping[str, Mapping[str, Any]] | None) -> Record:
        # With the file gone, the repetition's run is adopted if it is whole.
        document = reading.file(path, f"move {path} away: its run stands for it, or is made again")
        record = document.json(Record)
        if path != self._file(record.key):
            raise document.refusal(f"it is of {record.id}, repetition {record.repetition}")
        if points is not None and record.id not in points:
            raise document.refusal("the campaign has no such point")
        if points is not None and (settings := points[record.id]) != record.settings:
            was, should = json.dumps(record.settings), json.dumps(settings)
            raise document.refusal(f"its settings are {was}, and those of its name are {should}")
        return record


def digest(source: Source, points: Sequence[Point]) -> str:
    """Return the SHA-256 of an expanded campaign; its description does not count."""
    content = {k: v for k, v in source.campaign.content().items() if k != "description"}
    whole = [content, [[point.id, dict(point.settings)] for point in points]]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def require_same(
    begun: Begun,
    source: Source,
    points: Sequence[Point],
    uuid: str,
    made_with: Mapping[str, str],
    unseen: tuple[str, ...] = (),
) -> None:
    """Refuse to resume with a changed campaign, or on another cluster, under the same name.

    Args:
        made_with: What points are made with now (`provenance.made_with`).
        unseen: Prefixes of names in `made_with` that were not looked at.

    Raises:
        UsageError: The campaign or cluster differs; names the change and how to go on.
        Changed: Points are made with something else.
    """
    hint = (
        f"`--new` begins again and keeps what is there under a dated name; or run {source.path} "
        "under another file name"
    )
    if begun.uuid != uuid:
        raise UsageError(
            f"campaign {source.name} was begun on another cluster of this name "
            f"(uuid {short(begun.uuid)})",
            hint,
        )
    if begun.digest != digest(source, points):
        changed = "; ".join(_changes(begun.campaign, source.campaign.content()))
        raise UsageError(
            f"campaign {source.name} has changed since it was begun: "
            f"{short(changed, 1000) or 'other points come of it'}",
            hint,
        )
    require_alike(begun, source, made_with, unseen)


def require_alike(
    begun: Begun, source: Source, made_with: Mapping[str, str], unseen: tuple[str, ...] = ()
) -> None:
    """Refuse points that are made with something else than the campaign was begun with.

    Only what `begun.made_with` holds is compared; see `require_same` for the arguments.

    Raises:
        Changed: Something differs; names the change and how to go on.
    """
    others = {
        what: _changed(what, was, made_with.get(what))
        for what, was in begun.made_with.items()
        if was != made_with.get(what) and (what in made_with or not what.startswith(unseen))
    }
    if others:
        # A machine that the testbed has taken cannot be put back.
        back = "" if any(what.endswith(_ID) for what in others) else "put it back; or "
        raise Changed(
            f"since campaign {source.name} was begun, this has changed: "
            f"{short('; '.join(others.values()), 1000)}; points from before and after cannot be "
            "compared",
            f"{back}`--new` begins again and keeps what is there under a dated name; or "
            f"run {source.path} under another file name",
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
    if what == SPECIFICATION:  # a record leaves defaults out
        old, new = (wording.with_defaults(clusterspec.model(), each) for each in (old, new))
    return "; ".join(_changes(old, new, f"{what}: "))


def _changes(was: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for key in dict.fromkeys((*was, *now)):
        old, new, where = was.get(key), now.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += _changes(old, new, f"{where}.")
        elif old != new and where != "description":
            found.append(f"{where} was {_written(old)} and is {_written(new)}")
    return found


def _written(value: object) -> str:
    return "not there" if value is None else json.dumps(value)
