"""Statistics over several runs of the same job."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_LARGEST = 1e300
DEVICE = "device"
"""The metric with the name of the device that a job computed on."""


@dataclass(frozen=True)
class Summary:
    """One metric over the trials that reported it, in the metric's unit.

    Attributes:
        sd: Sample standard deviation (n - 1); None for a single trial.
        n: Number of trials that reported it.
    """

    mean: float
    sd: float | None
    min: float
    max: float
    n: int

    def document(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def summarize(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Summary]:
    """Summarize every metric that is a finite number, in the order of its first appearance."""
    names = dict.fromkeys(name for one in metrics for name in one)
    found = {name: [one[name] for one in metrics if is_number(one.get(name))] for name in names}
    return {
        name: Summary(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            min(values),
            max(values),
            len(values),
        )
        for name, values in found.items()
        if values
    }


def is_number(value: object) -> bool:
    """Return whether a metric is a number (no NaN, no infinity) whose sums stay finite."""
    finite = isinstance(value, int | float) and abs(value) < _LARGEST
    return finite and not isinstance(value, bool)


def mixed(devices: Sequence[str]) -> str:
    """Return a warning if trials computed on different devices, else an empty string."""
    if len(devices) < 2:
        return ""
    return f"trials computed on different devices ({'; '.join(devices)}): means mix them"
