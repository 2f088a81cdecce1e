"""Formats figures for people: few digits, and the unit that fits."""

from __future__ import annotations

from gpubed.core import intervals
from gpubed.jobs.trials import Summary

_DIGITS = 4
_DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_BINARY = (("Ti", 2.0**40), ("Gi", 2.0**30), ("Mi", 2.0**20), ("Ki", 2.0**10), ("", 1.0))
_PARTS = (("", 1.0), ("m", 1e-3), ("µ", 1e-6))
# Units that take a prefix, and their prefixes.
_PREFIXES = {"bit/s": _DECIMAL, "B": _BINARY, "B/s": _BINARY, "s": _PARTS}
_OF_ONE = {"", "1"}
_LARGE, _VAST = 1e4, 1e15  # digits are grouped from the first on, a power from the second on
_LARGEST = 10**308


def written(value: float | str, unit: str) -> str:
    """Write a value with its unit: `191 Mbit/s` for 191234567.8 bit/s."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int) and abs(value) > _LARGEST:  # more than a float can hold
        return "beyond 1e308" if value > 0 else "beyond -1e308"
    if unit in _OF_ONE:
        return f"{value:,.0f}" if _LARGE <= abs(value) < _VAST else f"{value:.{_DIGITS}g}"
    for prefix, factor in _PREFIXES.get(unit, ()):
        # A value that three digits round up to the next prefix gets that one.
        if abs(value) >= factor * (1 - 0.0005) and abs(value) > 0:
            return f"{_three(value / factor)} {prefix}{unit}"
    if abs(value) >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.{3 if unit == '%' else _DIGITS}g} {unit}"


def one_line(text: str) -> str:
    """Return text on one line, so that a job's text cannot pass for a line of gpubed."""
    return " ".join(text.splitlines())


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def summarized(summary: Summary, unit: str) -> str:
    """Write a summary of runs: mean, half of its 95 % interval (as in `bench`), bounds."""
    mean, least, most = (written(v, unit) for v in (summary.mean, summary.min, summary.max))
    if summary.min == summary.max:  # the same in each, as a setting is: no interval
        return f"{mean} ({'the same each time, ' * (summary.n > 1)}n = {summary.n})"
    bounds = f"{least} … {most}, n = {summary.n}"
    assert summary.sd is not None  # noqa: S101  # two that differ
    half = intervals.half_width_of(summary.sd, summary.n)
    return f"{mean} ± {written(float(f'{half:.2g}'), unit)} (95 %; {bounds})"
