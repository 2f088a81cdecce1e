"""Child processes of the engine, which end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

PROVIDER_THREADS = "GPUBED_PROVIDER_THREADS"
_ENGINE_PID = "GPUBED_ENGINE_PID"
_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 3.0
_STOP_SECONDS = 8.0
# gRPC would log forks and its shutdown to stderr.
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "false"}


def attach() -> None:
    """Ask the kernel for SIGTERM when the engine dies, and end all descendants on SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The engine may have died before the request took effect.
    if os.getppid() != int(os.environ[_ENGINE_PID]):
        sys.exit("the engine has gone")


def _end(_signal: int, _frame: FrameType | None) -> None:
    end_descendants()
    # A normal exit would join the worker threads, which wait for the processes just ended.
    os._exit(128 + signal.SIGTERM)


def end_descendants() -> None:
    """End all descendants, in other sessions too, with SIGTERM and after 3 s SIGKILL."""
    import psutil  # type: ignore[import-untyped]

    family = psutil.Process().children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        _, family = psutil.wait_procs(family, _GRACE_SECONDS)


class Child:
    """A Python child in a session of its own, so that Ctrl-C reaches only the engine.

    Start it from a thread that outlives it: the kernel's parent-death signal follows the thread.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> None:
        self._process = subprocess.Popen(
            # -P: a file of the project may have a module's name.
            [sys.executable, "-u", "-P", *arguments],
            cwd=cwd,
            env={**os.environ, **_QUIET, **environment, _ENGINE_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr  # noqa: S101, PT018
        self._stdout = self._process.stdout
        self._on_line = on_line
        self._pumps: list[threading.Thread] = []
        self._pump(self._process.stderr)
        self.poll, self.wait = self._process.poll, self._process.wait

    def first_line(self) -> str:
        """Return the first line of stdout; empty if the child ended without one."""
        return self._stdout.readline().strip()

    def pump_output(self) -> None:
        """Forward the rest of stdout."""
        self._pump(self._stdout)

    def stop(self) -> None:
        """End the child and its descendants, then read the rest of their output."""
        if self.poll() is None:
            self._process.terminate()
            try:
                self.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self.wait()
        for thread in self._pumps:
            thread.join(1.0)

    def _pump(self, stream: IO[str]) -> None:
        def forward() -> None:
            for line in stream:
                if line.strip():
                    self._on_line(line.rstrip("\n"))

        thread = threading.Thread(target=forward, name="output", daemon=True)
        thread.start()
        self._pumps.append(thread)
