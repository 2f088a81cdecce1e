"""How often Python looks for objects that only hold each other."""

from __future__ import annotations

import gc

_MADE = 50_000  # objects made before Python looks which can go; by default 700


def look_rarely() -> None:
    """Spend less of a processor on what is needed to the end of a short process anyway.

    At the start, that is modules and their classes: about a tenth of the time of `gpubed check`.
    """
    gc.set_threshold(_MADE)
