"""Reads the result of Horovod's autotuner from the log that it writes.

The format is that of Horovod 0.28.1 (`horovod/common/parameter_manager.cc`): a header, a row with
the score of each setting that was tried, and at the end of the search the best row again. A score
is the bytes that were summed per microsecond, the median of five samples.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

FILE = "autotune.csv"
# Columns of the log that are settings, with the names of their metrics.
_SETTINGS = {
    "tensor_fusion_threshold": "tuned_fusion_mb",
    "cycle_time_ms": "tuned_cycle_ms",
}
_SWITCHES = {
    "torus_allreduce": "tuned_hierarchical_allreduce",
    "cache_enabled": "tuned_cache",
}
_RATE, _TRIES = "tuned_rate_bps", "tuned_tries"
#: The metrics without a search, or if the search did not end.
NOTHING: dict[str, Any] = dict.fromkeys((*_SETTINGS.values(), *_SWITCHES.values(), _RATE, _TRIES))
_BIT_PER_S = 8e6  # of a byte per microsecond


def found(log: Path) -> dict[str, Any]:
    """Returns the best settings as metrics: MiB, ms, and the rate that they reached in bit/s.

    Args:
        log: The file of `HOROVOD_AUTOTUNE_LOG`. If it is missing, or the run ended before the
            search, all metrics are None.
    """
    try:
        with log.open(newline="") as lines:
            *tried, best = csv.DictReader(lines, skipinitialspace=True)
        if best not in tried or float(best["score"]) < max(float(row["score"]) for row in tried):
            return NOTHING  # the best row is not repeated: the search did not end
        return {
            **{name: float(best[column]) for column, name in _SETTINGS.items()},
            **{name: best[column] == "1" for column, name in _SWITCHES.items()},
            _RATE: float(best["score"]) * _BIT_PER_S,
            _TRIES: len(tried),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return NOTHING


def told(tuned: dict[str, Any]) -> str:
    """Returns a sentence about the best settings, with the arguments that set them."""
    if tuned == NOTHING:
        return "autotune did not come to its end: it found nothing"
    fusion, cycle = (tuned[name] for name in _SETTINGS.values())
    return (
        f"autotune tried {tuned[_TRIES]} settings; the best: --set fusion_mb={fusion:.4g} "
        f"--set cycle_ms={cycle:.4g}"
    )
