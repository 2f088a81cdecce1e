"""Which of a job's metrics stands for a point where there is room for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

#: How names of rates end: of what is done, and of what a link brings.
WORK, LINK = "_per_s", "_bps"
_LARGEST = 1e30  # beyond, or below 1 / it, sums and ratios are no numbers any more


def chosen(stop_metric: str | None, numbers: Iterable[str]) -> str:
    """Return the metric that is shown and compared, the same one in every table and report.

    Args:
        stop_metric: What points of the campaign are repeated for, if they are.
        numbers: The names of the metrics that are numbers, in the job's order.

    Returns:
        An empty string where there are none.
    """
    names = list(numbers)
    asked = [name for name in (stop_metric, "images_per_s") if name in names]
    rates = [name for ending in (WORK, LINK) for name in names if name.endswith(ending)]
    return next(iter([*filter(None, asked), *rates, *names]), "")


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a value can be computed with: finite, and so that a sum is."""
    small = isinstance(value, int | float) and abs(value) < _LARGEST
    return small and not isinstance(value, bool)
