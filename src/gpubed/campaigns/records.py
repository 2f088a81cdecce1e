"""A campaign's folder: what it is (`campaign.json`), and a file for each repetition that ended.

Files are written whole and once. A failed one that is repeated moves to `points/former`; nothing
is ever removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed import files, reading
from gpubed.campaigns.file import Source, short
from gpubed.campaigns.matrix import Point
from gpubed.errors import UsageError
from gpubed.reading import Missing

Key = tuple[str, int]
"""A point's id and its repetition, from 0."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Record(_Model):
    """What one repetition of a point gave.

    Attributes:
        reason: Why it failed; empty where it did not.
        started: In UTC, ISO 8601.
        seconds: How long it took.
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
    seconds: Annotated[float, Field(ge=0)]
    metrics: dict[str, Any]

    @property
    def key(self) -> Key:
        """Which repetition of which point it is."""
        return self.id, self.repetition


class Begun(_Model):
    """What `campaign.json` says that whoever goes on must know."""

    contract: Literal["gpubed/campaign/1"] = Field(alias="schema")
    digest: str
    campaign: dict[str, Any]
    uuid: str
    nodes: list[dict[str, Any]]
    started: str = ""
    made_with: dict[str, str] = {}

    @property
    def with_ranks(self) -> list[str]:
        """The nodes on which ranks could start then."""
        return [str(node.get("name")) for node in self.nodes if node.get("slots")]


@dataclass(frozen=True)
class Folder:
    """A campaign's folder below the cluster's state."""

    path: Path

    def begun(self) -> Begun | None:
        """Return how the campaign was begun; None where it was not.

        Raises:
            Unreadable: It was, and what it is cannot be read.
        """
        header = self.path / "campaign.json"
        try:
            return reading.file(header, "--new keeps the folder under a dated name").json(Begun)
        except Missing:
            if any(self._points.glob("*.json")):
                raise
            return None

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write what the campaign is, before its first point."""
        self._points.mkdir(parents=True, exist_ok=True)
        content = json.dumps(header, indent=2, allow_nan=False, default=str)
        files.write(self.path / "campaign.json", content.encode())

    def put_aside(self, now: datetime) -> Path | None:
        """Give the folder a dated name, if there is one; return where it is now."""
        if not self.path.exists():
            return None
        aside = self.path.with_name(f"{self.path.name}.{now:%Y%m%d-%H%M%S}")
        self.path.rename(aside)
        return aside

    def ended(self) -> dict[Key, Record]:
        """Return every repetition that has ended, well or not.

        Raises:
            Unreadable: One cannot be read.
        """
        found = (self._read(path) for path in sorted(self._points.glob("*.json")))
        return {record.key: record for record in found}

    def keep(self, record: Record) -> None:
        """Write what a repetition gave; from now on it is not run again."""
        content = record.model_dump_json(by_alias=True, indent=2)
        files.write(self._file(record.key), content.encode())

    def repeat(self, records: Iterable[Record]) -> None:
        """Move repetitions out of the way, so that they are run again."""
        former = self._points / "former"
        for record in records:
            former.mkdir(exist_ok=True)
            path = self._file(record.key)
            stamp = "".join(c for c in record.started if c.isdigit())
            path.rename(former / f"{path.stem}.{stamp}.json")

    @property
    def _points(self) -> Path:
        return self.path / "points"

    def _file(self, key: Key) -> Path:
        return self._points / f"{key[0]}.{key[1]}.json"

    def _read(self, path: Path) -> Record:
        document = reading.file(path, f"move {path} away: that repetition is run again")
        record = document.json(Record)
        if path != self._file(record.key):
            raise document.refusal(f"it is of {record.id}, repetition {record.repetition}")
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
) -> None:
    """Refuse to go on with another campaign, or on another cluster, under the same name.

    Args:
        made_with: What points are made with now (`provenance.made_with`).

    Raises:
        UsageError: It is another one; it says what changed, and how to go on.
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
    # A campaign of a former version does not say it.
    others = [what for what, was in begun.made_with.items() if was != made_with.get(what)]
    if others:
        raise UsageError(
            f"since campaign {source.name} was begun, this has changed: "
            f"{short(', '.join(others))}; points from before and after cannot be compared",
            hint,
        )


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
