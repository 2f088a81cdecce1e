"""Formats metrics for people, and chooses the main metric of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from gpubed.core import intervals
from gpubed.jobs.trials import Summary

_DIGITS = 4
_DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_BINARY = (("Ti", 2.0**40), ("Gi", 2.0**30), ("Mi", 2.0**20), ("Ki", 2.0**10), ("", 1.0))
_PARTS = (("", 1.0), ("m", 1e-3), ("µ", 1e-6))
# Units that take a prefix, and their prefixes.
_PREFIXES = {"bit/s": _DECIMAL, "B": _BINARY, "B/s": _BINARY, "s": _PARTS}
_OF_ONE = {"", "1"}
_LARGE, _VAST = 1e4, 1e15  # from these on, thousands are separated, or a power of ten is written
_LARGEST = 10**308
#: Endings of the names of rates: of work, and of links.
WORK, LINK = "_per_s", "_bps"
_SUMMABLE = 1e30  # sums and ratios of larger numbers may overflow


def formatted(value: float | str, unit: str) -> str:
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
        # A value that is rounded up to 1 of the next prefix gets that prefix.
        if abs(value) >= factor * (1 - 0.0005) and abs(value) > 0:
            scaled = value / factor
            text = f"{scaled:,.0f}" if abs(scaled) >= 999.5 else f"{scaled:.3g}"
            return f"{text} {prefix}{unit}"
    if abs(value) >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.{3 if unit == '%' else _DIGITS}g} {unit}"


def one_line(text: str) -> str:
    """Return text on one line, so that a job's text cannot pass for a line of gpubed."""
    return " ".join(text.splitlines())


def summarized(summary: Summary, unit: str) -> str:
    """Write a summary of runs: mean, half width of its 95 % interval, minimum and maximum."""
    mean, least, most = (formatted(v, unit) for v in (summary.mean, summary.min, summary.max))
    if summary.min == summary.max:
        return f"{mean} ({'the same each time, ' * (summary.n > 1)}n = {summary.n})"
    bounds = f"{least} … {most}, n = {summary.n}"
    assert summary.sd is not None  # noqa: S101  # as two values differ
    half = intervals.half_width_of(summary.sd, summary.n)
    return f"{mean} ± {formatted(float(f'{half:.2g}'), unit)} (95 %; {bounds})"


def main_metric(stop_metric: str | None, numbers: Iterable[str]) -> str:
    """Return the metric that tables and reports show and compare; empty without numbers.

    Args:
        stop_metric: The metric of the campaign's rule for repetitions, if any.
        numbers: The names of the metrics that are numbers, in the job's order.
    """
    names = list(numbers)
    preferred = [name for name in (stop_metric, "images_per_s") if name in names]
    rates = [name for ending in (WORK, LINK) for name in names if name.endswith(ending)]
    return next(filter(None, [*preferred, *rates, *names]), "")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number whose sums and ratios stay finite."""
    small = isinstance(value, int | float) and abs(value) < _SUMMABLE
    return small and not isinstance(value, bool)
