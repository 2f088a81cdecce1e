"""Writes settings, figures and intervals in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpubed.campaigns.file import ENVIRONMENT
from gpubed.core import units
from gpubed.jobs.metrics import formatted
from gpubed.report.read import Value

ALL = "all points"
PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "data_s": "waiting for data",
    "other": "other",
}
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SCALES = ("nodes", "ranks")
_NAMES = {"batch_size": "batch"}
# Settings whose values need no name before them; `none` or `fp16` would.
_SELF_EXPLANATORY = {"model", "framework", ENVIRONMENT, "cluster"}
_ENDINGS = (("_per_s", "/s"), ("_bps", "bit/s"), ("_bytes", "B"), ("_percent", "%"), ("_s", "s"))
_SPREAD, _EACH = "_sd", "_per_rank"
_LARGEST_RATE = 1e15


def clean(text: str) -> str:
    """Return text without control characters, and others that XML and HTML do not allow."""
    return _NOT_XML.sub("", text)


def unit(metric: str) -> str:
    """Return a metric's unit by the ending of its name."""
    name = metric.replace("_sd_", "_").removesuffix(_SPREAD).removesuffix(_EACH)
    for ending, found in _ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending) + found if found == "/s" else found
    return ""


def rate(value: Value) -> float | None:
    """Return a rate in bit/s: `100M`, `1 Gbit/s`; None if the value is not a rate."""
    for text in (value, f"{value}bit/s"):
        try:
            found = units.parse_rate(text)
        except ValueError:
            continue
        return float(found) if 0 < found < _LARGEST_RATE else None
    return None


def setting(name: str, value: Value) -> str:
    """Write a setting in words: `batch 32`, `1 Gbit/s`, `resnet18`, `compression none`."""
    if name == "rate" and (bps := rate(value)):
        return units.format_rate(bps)
    if name in SCALES:
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if isinstance(value, str) and name in _SELF_EXPLANATORY:
        return value
    plain = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    return f"{_NAMES.get(name, name.replace('_', ' '))} {'none' if plain is None else plain}"


def over(name: str, value: Value, against: Value) -> str:
    """Write two compared values of a setting: `1 Gbit/s over 100 Mbit/s`."""
    return f"{setting(name, value)} over {setting(name, against)}"


def settings(values: Mapping[str, Value]) -> str:
    """Write settings in their order; `ALL` if there are none."""
    return ", ".join(setting(name, value) for name, value in values.items()) or ALL


def metric(name: str) -> str:
    """Write a metric's name as a heading, without its unit."""
    if name.removesuffix(_EACH).endswith("_per_s"):
        return "throughput per rank" if name.endswith(_EACH) else "throughput"
    for ending, _ in _ENDINGS:
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def figure(value: float | None, metric: str) -> str:
    """Write a metric's value with its unit."""
    return "" if value is None else formatted(value, unit(metric))


def percent(share: float) -> str:
    """Write a share: `83 %`."""
    return f"{share * 100:.3g} %"


def times(factor: float) -> str:
    """Write a ratio: `2.93`."""
    return f"{factor:.3g}"


def order(value: Value) -> tuple[int, float, str]:
    """Return a key which sorts rates and numbers by size, texts by letters."""
    number = value if isinstance(value, int | float) else rate(value)
    bounded = None if number is None else float(max(min(number, 1e300), -1e300))
    return (1, 0.0, str(value)) if bounded is None else (0, bounded, str(value))
