"""One at a time works on a host: where hosts change places, one node leaves as another comes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.backends.static.config import host_of
from gpubed.core.paths import cache
from gpubed.testbeds.driver import Properties


@contextmanager
def of(inputs: Properties) -> Iterator[None]:
    """Wait until nobody else of this user works on a node's host, and keep others waiting."""
    host = host_of(inputs)
    folder = cache() / "hosts"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{host.address}-{host.port}").open("w") as place:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
