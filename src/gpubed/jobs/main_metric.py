"""Chooses the metric that represents a point where there is room for only one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

#: Endings of the names of rates: of work, and of links.
WORK, LINK = "_per_s", "_bps"
_LARGEST = 1e30  # sums and ratios of larger numbers, or of smaller ones than 1 / this, may overflow


def chosen(stop_metric: str | None, numbers: Iterable[str]) -> str:
    """Return the metric that is shown and compared, the same one in every table and report.

    Args:
        stop_metric: The metric that the campaign's rule for repetitions names, if any.
        numbers: The names of the metrics that are numbers, in the job's order.

    Returns:
        The metric's name; empty if there are no numbers.
    """
    names = list(numbers)
    asked = [name for name in (stop_metric, "images_per_s") if name in names]
    rates = [name for ending in (WORK, LINK) for name in names if name.endswith(ending)]
    return next(iter([*filter(None, asked), *rates, *names]), "")


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a value is a number small enough for sums to stay finite."""
    small = isinstance(value, int | float) and abs(value) < _LARGEST
    return small and not isinstance(value, bool)
