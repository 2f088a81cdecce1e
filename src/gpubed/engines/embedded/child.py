"""A child process whose output nobody loses."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from gpubed.engines.embedded.lifeline import ENGINE_PID

_STOP_SECONDS = 8.0


class Child:
    """A Python child in a session of its own, so that Ctrl-C reaches the engine alone.

    It must be started from a thread that outlives it: the kernel's parent-death
    signal follows the thread, not the process.

    Args:
        arguments: What follows the interpreter.
        cwd: Where it runs.
        environment: Added to this process's environment.
        on_line: Receives every line of its stdout and stderr.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> None:
        self._process = subprocess.Popen(
            # They run in the project's folder, where a file may be called like a module. The
            # program puts its own folder on sys.path.
            [sys.executable, "-u", "-P", *arguments],
            cwd=cwd,
            env={**os.environ, **_QUIET, **environment, ENGINE_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._on_line = on_line
        self._pumps: list[threading.Thread] = []
        assert self._process.stderr is not None  # noqa: S101
        self._pump(self._process.stderr)

    def first_line(self) -> str:
        """Returns the first line of stdout; empty when the child ended without one."""
        assert self._process.stdout is not None  # noqa: S101
        return self._process.stdout.readline().strip()

    def pump_output(self) -> None:
        """Forwards the rest of stdout."""
        assert self._process.stdout is not None  # noqa: S101
        self._pump(self._process.stdout)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the child runs."""
        return self._process.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for the end and returns the exit code, or None after the time is over."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def stop(self) -> None:
        """Ends the child and its descendants, then reads what they still said."""
        if self.poll() is None:
            self._process.terminate()
            if self.wait(_STOP_SECONDS) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
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


# gRPC's own chatter about forks and shutdown is no concern of the user.
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "false"}
