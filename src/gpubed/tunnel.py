"""The way to a service of the head: direct, or an SSH tunnel where others are in between."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.allocation import Allocation
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths

_LOCAL = "127.0.0.1"
_OPEN_WITHIN_S = 30.0


def command(cluster: ClusterPaths, allocation: Allocation, local: int, port: int) -> list[str]:
    """Return the command that lets `local` here stand for `port` of the head."""
    way = ["-N", "-L", f"{_LOCAL}:{local}:{_LOCAL}:{port}", allocation.head.name]
    return ["ssh", "-F", str(cluster.ssh_config), *way]


@contextmanager
def to_head(
    cluster: ClusterPaths,
    allocation: Allocation,
    port: int,
    local: int = 0,
    *,
    always: bool = False,
) -> Iterator[tuple[str, int]]:
    """Give address and port at which a port of the head answers here, as long as this lasts.

    Args:
        local: The port to take here for a tunnel, if it is free; else any.
        always: Whether it is a tunnel also where the head can be reached directly.

    Raises:
        GpubedError: The tunnel does not open.
    """
    if not (allocation.head.via or always):
        yield allocation.head.control_address, port
        return
    local = free(local) or free(0)
    started = command(cluster, allocation, local, port)
    options = ["-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes"]
    with subprocess.Popen(
        [*started[:1], *options, *started[1:]],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _await(process, local)
            yield _LOCAL, local
        finally:
            process.terminate()


def free(port: int) -> int:
    """Return the port if nobody has it here, a free one for 0, else 0."""
    with socket.socket() as probe:
        try:
            probe.bind((_LOCAL, port))
        except OSError:
            return 0
        free: int = probe.getsockname()[1]
        return free


def _await(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + _OPEN_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((_LOCAL, port), 1).close()
        except OSError:
            time.sleep(0.1)
            continue
        return
    process.terminate()
    said = process.stderr.read().strip() if process.stderr else ""
    raise GpubedError(f"the tunnel to the head does not open: {said or 'it takes too long'}")
