"""Connects to a service of the head: directly, or by an SSH tunnel through other hosts."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster

LOCAL = "127.0.0.1"
_OPEN_WITHIN_S = 30.0
_LAST_LINES = 3


def command(cluster: Cluster, local: int, port: int) -> list[str]:
    """Return the ssh command that forwards port `local` of loopback to `port` of the head."""
    forward = ["-N", "-L", f"{LOCAL}:{local}:{LOCAL}:{port}", cluster.allocation.head.name]
    return ["ssh", "-F", str(cluster.paths.ssh_config), *forward]


@dataclass(frozen=True)
class Tunnel:
    """A local port that is forwarded to the head while its ssh runs."""

    port: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]  # what ssh writes to stderr

    def require_open(self, again: str) -> None:
        """Raise `GpubedError` if ssh has ended, for example because this machine was asleep.

        The error's hint is `again`, the command that opens another tunnel.
        """
        if self.process.poll() is not None:
            raise GpubedError(f"the tunnel to the head has ended: {self.last_lines}", again)

    def wait(self, again: str) -> None:
        """Wait until ssh ends, then raise the error of `require_open`."""
        self.process.wait()
        self.require_open(again)

    @property
    def last_lines(self) -> str:
        """The last lines that ssh wrote."""
        self.errors.seek(0)
        lines = reading.tail(self.errors.read().decode(errors="replace"), _LAST_LINES)
        return "; ".join(lines.splitlines()) or "ssh gives no reason"


@contextmanager
def to_head(cluster: Cluster, port: int) -> Iterator[tuple[str, int]]:
    """Yield the address and port at which this machine reaches a port of the head.

    Raises `GpubedError` if a tunnel is needed and does not open.
    """
    if not cluster.allocation.head.via:
        yield cluster.allocation.head.control_address, port
        return
    with through_ssh(cluster, port) as opened:
        yield LOCAL, opened.port


@contextmanager
def through_ssh(cluster: Cluster, port: int, local: int = 0) -> Iterator[Tunnel]:
    """Forward a port of loopback, `local` if it is free, to a port of the head.

    Raises `GpubedError` if the tunnel does not open.
    """
    local = free(local) or free(0)
    ssh, *rest = command(cluster, local, port)
    started = [ssh, "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes", *rest]
    with (
        # A file, because a full pipe would block ssh.
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(started, stdin=subprocess.DEVNULL, stderr=errors) as process,
    ):
        opened = Tunnel(local, process, errors)
        try:
            _await(opened)
            yield opened
        finally:
            process.terminate()


def free(port: int) -> int:
    """Return `port` if it is free on this machine, else 0; for 0, return any free port."""
    with socket.socket() as probe:
        try:
            probe.bind((LOCAL, port))
        except OSError:
            return 0
        free: int = probe.getsockname()[1]
        return free


def _await(opened: Tunnel) -> None:
    deadline = time.monotonic() + _OPEN_WITHIN_S
    while time.monotonic() < deadline and opened.process.poll() is None:
        try:
            return socket.create_connection((LOCAL, opened.port), 1).close()
        except OSError:
            time.sleep(0.1)
    why = opened.last_lines if opened.process.poll() is not None else "it takes too long"
    raise GpubedError(f"the tunnel to the head does not open: {why}")
