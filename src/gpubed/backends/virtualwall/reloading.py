"""Machines that were given back: the testbed loads them anew before anybody has them.

Emulab takes some minutes for that. Whoever replaces a cluster may want the very machines that
it had, and waits. That they were given back is kept in a file: an engine removes the old slice and
makes the new one by two drivers, each bound anew, and a killed run is gone on with by another.
"""

from __future__ import annotations

import time

from gpubed.core.paths import ClusterPaths

_LONGEST_S = 900.0
_PART = 3  # of all patience: nodes have to boot, too
_FILE = "given_back"  # since when, its date says


def begin(paths: ClusterPaths) -> None:
    """Remember that a cluster's machines were given back now."""
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    (paths.state / _FILE).touch()


def goes_on(paths: ClusterPaths, patience_s: float) -> bool:
    """Say whether machines that a cluster gave back may still come back."""
    try:
        ago = time.time() - (paths.state / _FILE).stat().st_mtime
    except FileNotFoundError:
        return False
    return 0 <= ago < min(_LONGEST_S, patience_s / _PART)
