"""Machines that were given back: the testbed loads them anew before anybody has them.

Emulab takes some minutes for that. Whoever replaces a cluster may want the very machines that
it had, and waits. Known to the process that gave them back: another one takes what there is.
"""

from __future__ import annotations

import time

from gpubed.core.paths import ClusterPaths

_LONGEST_S = 900.0
_PART = 3  # of all patience: nodes have to boot, too
_since: dict[ClusterPaths, float] = {}


def begin(paths: ClusterPaths) -> None:
    """Remember that a cluster's machines were given back now."""
    _since[paths] = time.monotonic()


def goes_on(paths: ClusterPaths, patience_s: float) -> bool:
    """Say whether machines that a cluster gave back may still come back."""
    since = _since.get(paths)
    longest = min(_LONGEST_S, patience_s / _PART)
    return since is not None and time.monotonic() - since < longest
