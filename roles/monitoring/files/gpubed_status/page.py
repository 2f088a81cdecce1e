"""Renders the page: figures with units, and small charts as SVG."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_CHART = (96, 24)
_UNKNOWN = "n/a"


def render(**view: Any) -> str:
    """Return the HTML of the page; all texts are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "size": size,
        "rate": rate,
        "duration": duration,
        "moment": moment,
        "points": points,
    }
    environment.globals["clock"] = time.strftime("%H:%M:%S UTC", time.gmtime(view["now"]))
    return environment.get_template("page.html").render(view)


def percent(ratio: float | None) -> str:
    """Write 0.256 as `26 %`."""
    return _UNKNOWN if ratio is None else f"{ratio:.0%}".replace("%", " %")


def size(count: float | None) -> str:
    """Write bytes with a binary prefix: `4.0 GiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rate(bps: float | None) -> str:
    """Write bit/s with a decimal prefix: `200 Mbit/s`."""
    return _scaled(bps, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def duration(seconds: float | None) -> str:
    """Write seconds with at most two units: `2 h 5 min`."""
    if seconds is None:
        return _UNKNOWN
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def moment(seconds: float) -> str:
    """Write a short time: `0.4 ms`, `220 ms`, `2.1 s`."""
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"


def points(values: list[float], top: float | None = None) -> str:
    """Return the points of a line over time; `top` is the value at the upper edge."""
    width, height = _CHART
    highest = max([top or 0, *values]) or 1
    step = width / max(len(values) - 1, 1)
    # A margin of one unit, so that a line at the edge is fully visible.
    return " ".join(
        f"{i * step:.1f},{height - 1 - value / highest * (height - 2):.1f}"
        for i, value in enumerate(values)
    )


def _scaled(value: float | None, base: int, units: tuple[str, ...]) -> str:
    if value is None:
        return _UNKNOWN
    power = 0
    while value >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.3g} {units[power]}" if value < 100 else f"{value:.0f} {units[power]}"
