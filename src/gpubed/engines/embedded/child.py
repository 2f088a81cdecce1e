"""Child processes of the engine, which end with it: the stack's program and its providers.

`python -P -m gpubed.engines.embedded.child program ADDRESS PROJECT STACK ROOT ENTRY PARALLEL
PREVIEW` runs a program as Pulumi's language host does; `… child providers SOCKET PARALLEL` serves
dynamic providers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import IO, Any

_ENGINE_PID = "GPUBED_ENGINE_PID"
_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 3.0
_STOP_SECONDS = 8.0
# gRPC would log forks and its shutdown to stderr.
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "false"}
_FRAMES = 10


def end_descendants() -> None:
    """End all descendants, in other sessions too, with SIGTERM and after 3 s SIGKILL."""
    import psutil  # type: ignore[import-untyped]

    family = psutil.Process().children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        # psutil's wait would take the exit status from `subprocess`, which then reads 0.
        end = time.monotonic() + _GRACE_SECONDS
        while (family := [p for p in family if _lives(p)]) and time.monotonic() < end:
            time.sleep(0.05)


def _lives(process: Any) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


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
            # -P: files of the project must not shadow modules.
            [sys.executable, "-u", "-P", "-m", __name__, *arguments],
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


def _main() -> int:
    """Run as a child, which the kernel ends with the engine, and SIGTERM with all descendants."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        end_descendants()
        # A normal exit would join the worker threads, which wait for the processes just ended.
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The engine may have died before the request took effect.
    if os.getppid() != int(os.environ[_ENGINE_PID]):
        sys.exit("the engine has gone")
    return _program(*sys.argv[2:]) if sys.argv[1] == "program" else _providers(*sys.argv[2:])


def _providers(socket: str, parallel: str) -> int:
    """Serve dynamic providers until ended; print a line once the server listens.

    The SDK's server executes what it receives (`dill.loads`), and binds a loopback TCP port, which
    every user of this machine can reach. Here it listens on a socket in a folder that only this
    user may enter.
    """
    import grpc  # type: ignore[import-untyped]

    # Providers may be modules of the project; at the end of the path they shadow no other module.
    sys.path.append(str(Path.cwd()))
    make = grpc.server

    def server(_pool: Any, **options: Any) -> Any:
        # The SDK allows only four calls at once.
        made = make(ThreadPoolExecutor(int(parallel)), **options)
        listen = made.add_insecure_port
        made.add_insecure_port = lambda address: listen(f"unix:{socket}")
        return made

    grpc.server = server
    runpy.run_module("pulumi.dynamic", run_name="__main__")
    return 0


def _program(
    address: str, project: str, stack: str, root: str, entry: str, parallel: str, preview: str
) -> int:
    """Run the program in the current directory; return 1 if it raises, which is logged."""
    import asyncio
    import functools
    import gc
    import linecache
    import logging
    import traceback

    import pulumi

    settings = pulumi.runtime.Settings(
        project=project,
        stack=stack,
        monitor=address,
        engine=address,
        parallel=int(parallel),
        dry_run=preview == "True",
        organization="organization",
        root_directory=root,
    )
    pulumi.runtime.configure(settings)
    # The SDK sends each resource's call stack, to locate its declaration. The innermost frames are
    # enough, and source files need not be checked for changes each time.
    linecache.checkcache = lambda *_: None
    traceback.extract_stack = functools.partial(traceback.extract_stack, limit=_FRAMES)
    gc.set_threshold(50_000)  # most objects of a short process live to its end
    # The engine drops debug messages, and each one is a blocking call.
    pulumi.log.debug = lambda *_args, **_options: None
    sys.argv = [entry]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)

    async def program() -> None:
        runpy.run_path(entry, run_name="__main__")
        # Lets the SDK see all registrations first; else it goes through all unfinished outputs
        # whenever one of them finishes.
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # Every pending registration blocks one thread.
    with ThreadPoolExecutor(4 * int(parallel)) as executor:
        loop.set_default_executor(executor)
        try:
            loop.run_until_complete(pulumi.runtime.run_in_stack(program))
        except pulumi.RunError as error:
            pulumi.log.error(str(error))
        except Exception as error:
            # Starts at the first frame of the user's code.
            frames = traceback.extract_tb(error.__traceback__)
            inner = [i for i, frame in enumerate(frames) if frame.name == "<module>"]
            shown = traceback.format_exc(limit=inner[0] - len(frames) if inner else None)
            pulumi.log.error(f"Program failed with an unhandled exception:\n{shown}")
        else:
            return 0
    return 1


if __name__ == "__main__":
    code = _main()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
