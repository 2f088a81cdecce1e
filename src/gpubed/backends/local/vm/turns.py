"""Who may boot now: as many CPUs boot at a time as this machine has.

Four emulated machines that start at once on two cores take longer than two and two.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from gpubed.core.paths import cache

_PAUSE_S = 0.2


@contextmanager
def take(cpus: int) -> Iterator[None]:
    """Hold a place for each CPU, among all processes and clusters of this user."""
    count = os.cpu_count() or 1
    wanted, taken = min(cpus, count), set[IO[str]]()
    folder = cache() / "boot"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        places = [held.enter_context((folder / str(n)).open("w")) for n in range(count)]
        # One collects at a time: two that hold a half each would wait for ever.
        with (folder / "queue").open("w") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            while len(taken) < wanted:
                free = (place for place in places if place not in taken and _lock(place))
                if (place := next(free, None)) is None:
                    time.sleep(_PAUSE_S)
                else:
                    taken.add(place)
        yield


def _lock(place: IO[str]) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
