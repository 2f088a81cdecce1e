"""One run at a time per cluster, and no worker that outlives its run.

The lock is a `flock`, so it vanishes with its holder however that ends. Workers
(the provider process and the Ansible it starts) carry the cluster in their
environment; the next run ends those that a killed run left behind.
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
_GRACE = 10.0
_A_LOOK = 0.1


class Holder(BaseModel):
    """The holder of a lock, as the lock names it; without a verb where it cannot."""

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
    """Hold a cluster, by its state folder, for the length of a run.

    Args:
        verb: Shown to another run that comes meanwhile, which raises `Locked`.

    Yields:
        The process ids of abandoned workers that had to be ended.
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
    """Hold a cluster's nodes while something is measured on them.

    Others may measure at the same time only where all share (`shared`); else `Locked` is raised.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(state / MEASURING, verb, shared=shared))
        except Locked as refused:
            why = f"{refused.message}: both would share the processors, and measure that"
            hint = f"wait for its end; gpubed runs {state.name} lists what is at work"
            raise Locked(why, hint) from None
        yield


@contextmanager
def measuring_if_free(state: Path, verb: str) -> Iterator[None]:
    """Keep others from measuring meanwhile, unless one already measures."""
    with ExitStack() as held:
        with suppress(Locked):
            held.enter_context(measuring(state, verb))
        yield


def holder(state: Path) -> Holder | None:
    """Return the run that holds a cluster, by its state folder; None for none."""
    return holder_of(state / "lock")


def holder_of(path: Path) -> Holder | None:
    """Return the holder of a lock file that is not shared; None for none."""
    return _holder(path, fcntl.LOCK_SH)


def measurer(state: Path) -> Holder | None:
    """Return the run that measures on a cluster's nodes, the last of several; None for none."""
    return _holder(state / MEASURING, fcntl.LOCK_EX)


def is_ours(who: Holder, state: Path) -> bool:
    """Say whether a measuring process is this one, or the run whose worker this one is."""
    run = holder(state) if os.environ.get(WORKER) == str(state) else None
    return who.pid in (os.getpid(), run.pid if run else None)


@contextmanager
def locked(path: Path, verb: str, wait: float = 0.0, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock file; wait for it up to `wait` seconds, then raise `Locked`.

    Args:
        shared: Whether others who share it may hold it, too.
    """
    descriptor = _acquire(path, wait, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        me = Holder(
            verb=verb,
            pid=os.getpid(),
            user=getpass.getuser(),
            host=socket.gethostname(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            shared=shared,
        )
        # On a full disk the lock holds all the same, only without a name.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, me.model_dump_json().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def require_free(state: Path) -> None:
    """Raise `Locked` for a cluster that a run is changing."""
    if holder(state):
        raise _refusal(state / "lock")


def _holder(path: Path, way: int) -> Holder | None:
    """Return the holder that keeps others from taking a lock in this way."""
    try:
        # NFS gives an exclusive lock only to a file that is open for writing (flock(2)).
        with path.open("r+" if way == fcntl.LOCK_EX else "r") as lock:
            fcntl.flock(lock, way | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return _who(path)
    except PermissionError:
        raise not_ours(path, path.parent.parent) from None
    return None


def _acquire(path: Path, wait: float, kind: int) -> int:
    # A look (`holder`) holds it for a moment.
    deadline = time.monotonic() + max(wait, _A_LOOK)
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
            # `down` may have removed the file since: such a lock would hold no run back.
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise _refusal(path) from None
            time.sleep(_A_LOOK)
        os.close(descriptor)


def _refusal(path: Path) -> Locked:
    return Locked(
        f"{path.parent.name} is held by {_who(path)}", "wait for it, or end it with Ctrl-C"
    )


def _who(path: Path) -> Holder:
    """Return the last process that took a lock, nameless if it has given a shared one up since."""
    try:
        who = reading.file(path).json(Holder)
        if not who.shared or who.host != socket.gethostname() or has_open(who.pid, path):
            return who
    except PermissionError:  # another user's process
        return who
    except (reading.Unreadable, FileNotFoundError, ProcessLookupError):
        pass
    return Holder()


def has_open(process: int, path: Path) -> bool:
    """Say whether a process has a file open; the same number may be another in a container.

    Raises:
        PermissionError: It is another user's.
        FileNotFoundError: There is no such process.
        ProcessLookupError: It has just ended.
    """
    return path.resolve() in {one.resolve() for one in Path(f"/proc/{process}/fd").iterdir()}


def _end_orphans(state: Path) -> list[int]:
    orphans = left = workers(state)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE
        while (left := workers(state)) and time.monotonic() < deadline:
            time.sleep(_A_LOOK)
    if left:
        raise GpubedError(f"processes of a killed run do not end: {left}", "kill them, then retry")
    return orphans


def workers(state: Path) -> list[int]:
    """Return the processes that a run of the cluster has started, this one aside."""
    marker = f"{WORKER}={state}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it ended meanwhile, or belongs to another user
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
