"""Parses and formats quantities of a specification: rates, sizes, durations and numbers.

Rates are decimal, in bit/s; sizes binary or decimal, in bytes; durations in seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic_core import PydanticKnownError

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]*)\s*")
_RATE = {"": 1, "bit/s": 1, "bps": 1} | {
    f"{prefix}{unit}": 10**power
    for prefix, power in {"k": 3, "M": 6, "G": 9, "T": 12}.items()
    for unit in ("bit/s", "bps", "bit")
}
_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for unit, base in (("iB", 1024), ("B", 1000))
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MOST_DAYS = 3650  # ten years: adding them to the present time never overflows a date
_MOST_S = _MOST_DAYS * 86400.0


def _parse(value: object, units: Mapping[str, float], example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must look like {example}")
    match = _NUMBER.fullmatch(str(value))
    if match is None or match[2] not in units:
        raise ValueError(f"must look like {example} (units: {', '.join(filter(None, units))})")
    number = float(match[1]) * units[match[2]]
    if not math.isfinite(number):
        raise ValueError("is too large")
    return number


def parse_rate(value: object) -> int:
    """Parse a data rate such as ``200 Mbit/s`` or ``10 Gbps``; returns bit/s, raises ValueError."""
    return round(_parse(value, _RATE, "200 Mbit/s"))


def parse_bytes(value: object) -> int:
    """Parse a size such as ``4 GiB``; returns bytes, raises ValueError."""
    return round(_parse(value, _BYTES, "4 GiB"))


def parse_seconds(value: object, example: str = "24 h") -> float:
    """Parse a duration such as ``24 h``, at most ten years; returns seconds, raises ValueError.

    The error message shows `example`.
    """
    seconds = _parse(value, _SECONDS, example)
    if seconds > _MOST_S:
        raise ValueError(f"must be at most {_MOST_DAYS} d")
    return seconds


def format_rate(bps: float) -> str:
    """Format a rate as `parse_rate` reads it: ``200 Mbit/s``."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bps >= factor:
            return f"{bps / factor:.12g} {prefix}bit/s"
    return f"{bps:.12g} bit/s"


def format_seconds(seconds: float) -> str:
    """Format a duration as `parse_seconds` reads it, in the largest unit that divides it."""
    return _multiple(seconds, {unit: _SECONDS[unit] for unit in ("d", "h", "min", "s", "ms")})


def duration(seconds: float) -> str:
    """Format a duration rounded to its largest unit: ``3 h``."""
    for unit in ("d", "h", "min"):
        if seconds >= _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(size: float) -> str:
    """Format a size as `parse_bytes` reads it, in the largest unit that divides it."""
    units = ("TiB", "GiB", "MiB", "KiB", "B")
    return _multiple(size, {unit: float(_BYTES[unit]) for unit in units})


# The formatter of each parser's values.
WRITERS: dict[Any, Callable[[float], str]] = {
    parse_rate: format_rate,
    parse_bytes: format_bytes,
    parse_seconds: format_seconds,
}


def _multiple(value: float, units: Mapping[str, float]) -> str:
    *others, (last, smallest) = units.items()
    for unit, factor in others:
        if value >= factor and value % factor == 0:
            return f"{value / factor:.12g} {unit}"
    return f"{value / smallest:.12g} {last}"


def _no_bool(kind: Literal["int_type", "float_type"]) -> BeforeValidator:
    def refuse_bool(value: object) -> object:
        # Pydantic reads true as 1, and YAML reads yes and on as true.
        if isinstance(value, bool):
            raise PydanticKnownError(kind)
        return value

    return BeforeValidator(refuse_bool)


def _text(units: Mapping[str, float]) -> Any:
    """Return the JSON Schema type of a quantity with an optional unit."""
    names = "|".join(sorted(filter(None, units)))
    return Annotated[str, Field(pattern=rf"^\s*\d+(\.\d+)?\s*({names})?\s*$")]


# The validators come last: before the bounds, they would remove them from the JSON Schema.
_WHOLE, _DECIMAL = _no_bool("int_type"), _no_bool("float_type")
Whole = Annotated[int, _WHOLE]
WholeOrNone = Annotated[int | None, _WHOLE]
Count = Annotated[int, Field(ge=0), _WHOLE]
Port = Annotated[int, Field(ge=1, le=65535), _WHOLE]
Number = Annotated[float, _DECIMAL]
NumberOrNone = Annotated[float | None, _DECIMAL]
Rate = Annotated[
    int,
    BeforeValidator(parse_rate, json_schema_input_type=_text(_RATE) | float),
    Field(ge=1_000_000, description="data rate, for example `200 Mbit/s`"),
]
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes, json_schema_input_type=_text(_BYTES) | float),
    Field(gt=0, description="size, for example `4 GiB`"),
]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds, json_schema_input_type=_text(_SECONDS) | float),
    Field(ge=0, le=_MOST_S, description="duration, for example `24 h`"),
]
Moment = Annotated[
    AwareDatetime,
    # Near the first and last date, converting to another timezone overflows.
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC)),
]
