"""Reads metrics by step from a run's `metrics.jsonl`, `metrics.csv` or TensorBoard event files."""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from gpubed.core import reading
from gpubed.core.reading import Unreadable
from gpubed.jobs.trials import is_number

Points = list[tuple[float, float]]
_FILES = ("metrics.jsonl", "metrics.csv")
_STEPS = ("step", "global_step", "iteration", "epoch")
_LARGEST = 64 * 2**20  # bytes
_MOST = 100  # figures
_LARGEST_WHOLE = 2**63
_LONGEST = 100  # characters of a name
_ROW = TypeAdapter[Mapping[str, Any]](dict[str, Any])
# Raised for event files that are cut off, damaged, or have fields of other types.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error)
_BLOCKS = "▁▂▃▄▅▆▇█"


def read(folder: Path) -> dict[str, Points]:
    """Return the steps and values of each metric in a run's folder, in the order of the rows.

    `metrics.jsonl` has an object per line. The step is in the first of the columns `step`,
    `global_step`, `iteration` and `epoch`, else it is the row's number. Invalid rows, and values
    that are no numbers, are left out. Event files are read if both other files are missing.
    """
    curves = dict[str, Points]()
    for number, row in enumerate(_rows(folder)):
        values = {
            name: value for name, given in row.items() if (value := _number(given)) is not None
        }
        by = next((name for name in _STEPS if name in values), None)
        step = values.pop(by) if by else number
        for name, value in values.items():
            if name in curves or (len(curves) < _MOST and len(name) <= _LONGEST):
                curves.setdefault(name, []).append((step, value))
    return curves


def thinned(points: Points, most: int) -> Points:
    """Return at most `most` points, each the mean of its neighbours, without NaN and infinity."""
    finite = [point for point in points if all(map(is_number, point))]
    each = math.ceil(len(finite) / most) or 1
    parts = [finite[start : start + each] for start in range(0, len(finite), each)]
    return [(part[-1][0], fmean(value for _, value in part)) for part in parts]


def drawn(points: Points, width: int = 40) -> str:
    """Return a curve as a line of block characters."""
    values = [value for _, value in thinned(points, width)]
    low, span = min(values, default=0.0), max(values, default=0.0) - min(values, default=0.0)
    return "".join(_BLOCKS[int((v - low) / span * 7.99) if span else 0] for v in values)


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    for name in _FILES:
        try:
            lines = reading.file(folder / name, limit=_LARGEST).text().splitlines()
        except Unreadable:
            continue
        if name.endswith(".csv"):
            with suppress(csv.Error):
                yield from ({k: v for k, v in row.items() if k} for row in csv.DictReader(lines))
            return
        for line in lines:
            with suppress(Unreadable):  # the last line may be cut off
                yield reading.reply(line, name).json(_ROW)
        return
    files = sorted(folder.rglob("events.out.tfevents.*"))
    folders = {file.parent for file in files}
    for file in files:
        prefix = f"{file.parent.name}/" if len(folders) > 1 else ""
        with suppress(Unreadable, *_DAMAGED):
            for step, tag, value in _scalars(reading.file(file, limit=_LARGEST).data):
                yield {"step": step, f"{prefix}{tag}": value}


def _scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    """Yield step, tag and value of the scalars in an event file.

    A record is its length (8 bytes), a checksum (4), an `Event` and a checksum (4); the numbers of
    fields are those of TensorBoard's `event.proto` and `summary.proto`.
    """
    at = 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = dict(_fields(content[at + 12 : at + 12 + length]))
        at += length + 16
        for number, value in _fields(event.get(5, b"")):
            scalar = dict(_fields(value)) if number == 1 else {}
            if 2 in scalar:
                simple = struct.unpack("<f", scalar[2].to_bytes(4, "little"))
                yield event.get(2, 0), scalar[1].decode(errors="replace"), *simple


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    from google.protobuf.empty_pb2 import Empty  # slow to load, and few runs have event files
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        fields = UnknownFieldSet(Empty.FromString(message))
    except DecodeError as error:
        raise ValueError(error) from None
    for field in fields:
        yield field.field_number, field.data


def _number(given: Any) -> float | None:
    for kind in (int, float) if isinstance(given, str) else ():
        with suppress(ValueError):
            given = kind(given)
            break
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return None if isinstance(given, int) and abs(given) >= _LARGEST_WHOLE else given
