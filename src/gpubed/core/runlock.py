"""Locks that allow one run at a time per cluster, and cleanup of a killed run's workers.

The lock is a `flock`, which the kernel releases however its holder ends. Workers (the provider
process and the Ansible it starts) have the cluster in their environment; the next run ends those
that a killed run left behind.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel

from gpubed.core import reading
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import not_ours

WORKER, MEASURING = "GPUBED_WORKER", "measuring"
_GRACE_S = 10.0
_POLL_S = 0.1


class Holder(BaseModel):
    """The holder of a lock, as written in the lock file; `verb` is empty if unknown."""

    verb: str = ""
    pid: int = 0
    user: str = ""
    host: str = ""
    since: str = ""
    shared: bool = False

    def __str__(self) -> str:
        if not self.verb:
            return "another run"
        return f"`gpubed {self.verb}` (pid {self.pid}, user {self.user}, since {self.since})"


@contextmanager
def hold(state: Path, verb: str) -> Iterator[list[int]]:
    """Lock a cluster for a run of `verb`; yield the process ids of orphaned workers that it ended.

    Raises `Locked` if another run holds the cluster.
    """
    with locked(state / "lock", verb):
        ended = _end_orphans(state)
        os.environ[WORKER] = str(state)
        try:
            yield ended
        finally:
            os.environ.pop(WORKER, None)


@contextmanager
def measuring(state: Path, verb: str, *, shared: bool = False) -> Iterator[None]:
    """Lock a cluster's nodes for a measurement, or raise `Locked`.

    Several measurements may run at the same time only if all are `shared`.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(state / MEASURING, verb, shared=shared))
        except Locked as refused:
            why = f"{refused.message}: both would share the processors and falsify the figures"
            hint = f"wait for its end; gpubed runs {state.name} lists the active runs"
            raise Locked(why, hint) from None
        yield


@contextmanager
def measuring_if_free(state: Path, verb: str) -> Iterator[None]:
    """Lock a cluster's nodes for a measurement, unless another one has locked them."""
    with ExitStack() as held:
        with suppress(Locked):
            held.enter_context(measuring(state, verb))
        yield


def holder(state: Path) -> Holder | None:
    """Return the run that holds a cluster, by its state folder, or None."""
    return holder_of(state / "lock")


def holder_of(path: Path) -> Holder | None:
    """Return the exclusive holder of a lock file, or None."""
    return _holder(path, fcntl.LOCK_SH)


def measurer(state: Path) -> Holder | None:
    """Return the run that measures on a cluster's nodes, the latest of several, or None."""
    return _holder(state / MEASURING, fcntl.LOCK_EX)


def is_ours(measurer: Holder, state: Path) -> bool:
    """Return whether a measuring process is this process or the run that started it."""
    run = holder(state) if os.environ.get(WORKER) == str(state) else None
    return measurer.pid in (os.getpid(), run.pid if run else None)


@contextmanager
def locked(path: Path, verb: str, wait: float = 0.0, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock file; wait for it up to `wait` seconds, then raise `Locked`.

    `shared` admits other `shared` holders at the same time.
    """
    descriptor = _acquire(path, wait, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        me = Holder(verb=verb, pid=os.getpid(), user=getpass.getuser(), shared=shared)
        me.host, me.since = socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S")
        # On a full disk, the lock holds without naming its holder.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, me.model_dump_json().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def require_free(state: Path) -> None:
    """Raise `Locked` if a run is changing the cluster."""
    if holder(state):
        raise _refusal(state / "lock")


def _holder(path: Path, kind: int) -> Holder | None:
    try:
        # NFS grants an exclusive lock only on a file that is open for writing (flock(2)).
        with path.open("r+" if kind == fcntl.LOCK_EX else "r") as lock:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return _last_holder(path)
    except PermissionError:
        raise not_ours(path, path.parent.parent) from None
    return None


def _acquire(path: Path, wait: float, kind: int) -> int:
    # Always wait a little, because `holder` takes the lock for a moment.
    deadline = time.monotonic() + max(wait, _POLL_S)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except IsADirectoryError:
            raise GpubedError(f"{path} is a folder and not a lock", f"rmdir {path}") from None
        except PermissionError:
            raise not_ours(path, path.parent.parent) from None
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            # `down` may have removed the file meanwhile, so the locked inode may be stale.
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise _refusal(path) from None
            time.sleep(_POLL_S)
        os.close(descriptor)


def _refusal(path: Path) -> Locked:
    why = f"{path.parent.name} is held by {_last_holder(path)}"
    return Locked(why, "wait for its end, or end it with Ctrl-C")


def _last_holder(path: Path) -> Holder:
    """Return the last process that took a lock; an empty `Holder` if it has released it since."""
    try:
        last = reading.file(path).json(Holder)
        if not last.shared or last.host != socket.gethostname() or has_open(last.pid, path):
            return last
    except PermissionError:  # another user's process
        return last
    except (reading.Unreadable, FileNotFoundError, ProcessLookupError):
        pass
    return Holder()


def has_open(process: int, path: Path) -> bool:
    """Return whether a process has a file open.

    Raises `PermissionError` for another user's process, `FileNotFoundError` or `ProcessLookupError`
    for an ended one.
    """
    return path.resolve() in {link.resolve() for link in Path(f"/proc/{process}/fd").iterdir()}


def _end_orphans(state: Path) -> list[int]:
    orphans = left = workers(state)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while (left := workers(state)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if left:
        raise GpubedError(f"processes of a killed run do not end: {left}", "kill them, then retry")
    return orphans


def workers(state: Path) -> list[int]:
    """Return the ids of processes started by a run of the cluster, except this process."""
    marker = f"{WORKER}={state}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it ended meanwhile, or belongs to another user
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
