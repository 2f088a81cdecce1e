"""The file backend: a stack's state, its safe replacement, and its locks, in the CLI's format."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, PositiveInt

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, Locked, unwritable
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.events import DamagedState, Refusal
from gpubed.engines.embedded.values import Properties

_MOST_BACKUPS = 10
_LONGEST = 500  # characters of a reason; names in a damaged state may have any length
_LARGEST = 2**29  # bytes of a state; ten thousand nodes need less


class StackFile:
    """One stack in a file backend."""

    def __init__(self, root: Path, project: str, stack: str) -> None:
        self.project, self.stack = project, stack
        self._home = root / ".pulumi"
        self.path = self._home / "stacks" / project / f"{stack}.json"
        self.backup = self.path.with_name(f"{stack}.json.bak")  # the state before the last write
        self.kept = self._home / "backups" / project / stack  # the states before the last runs
        self.locks = self._home / "locks" / "organization" / project / stack

    def read(self) -> Properties | None:
        """Return the checkpoint, or None when there is no such stack."""
        for suffix in (".gz", ".zst"):
            if self.path.with_name(self.path.name + suffix).exists():
                raise Refusal("compressed state", f"{self.path.name}{suffix}")
        stacks = self._home / "stacks"
        if not (self._home / "meta.yaml").exists() and any(stacks.glob("*.json")):
            raise Refusal("the legacy state layout", str(stacks))
        try:
            return _parsed(self.path)
        except reading.Missing:
            return None
        except Unreadable as error:
            raise DamagedState(f"the state {error.message}", self._repair()) from None

    @contextlib.contextmanager
    def explaining_damage(self) -> Iterator[None]:
        """Add the file and its repair to a `DamagedState` that the body raises."""
        try:
            yield
        except DamagedState as error:
            message = f"the state {self.path} cannot be read: {error.message[:_LONGEST]}"
            raise DamagedState(message, self._repair()) from None

    def _repair(self) -> str:
        """Return the shell command that restores the newest readable earlier state."""
        here = quote(str(self.path))
        if self.path.exists() and not os.access(self.path, os.R_OK):
            mine = f"sudo chown -R {getpass.getuser()} {quote(str(self.path.parents[3]))}"
            return f"{mine}   (it is {self.path.owner()}'s)"
        present = None
        with contextlib.suppress(GpubedError):
            present = _parsed(self.path)
        for earlier in (self.backup, *sorted(self.kept.glob("*.json"), reverse=True)):
            with contextlib.suppress(GpubedError):
                if _parsed(earlier) != present:
                    then = f"(then: gpubed up {self.stack} --refresh)"
                    return f"cp {quote(str(earlier))} {here}   {then}"
        return (
            f"mv {here} {here}.damaged   (no earlier state is whole; "
            f"then: gpubed audit {self.stack} tells what exists)"
        )

    def keep(self) -> None:
        """Copy the present checkpoint to the folder where the CLI keeps earlier states too."""
        with contextlib.suppress(OSError):  # the run works without this copy
            if self.path.exists():
                self.kept.mkdir(parents=True, exist_ok=True)
                _link(self.path, self.kept / f"{self.stack}.{time.time_ns()}.json")
                for old in sorted(self.kept.iterdir())[:-_MOST_BACKUPS]:
                    old.unlink()

    def write(self, text: str) -> None:
        """Replace the checkpoint, durably, keeping the previous content as `.bak`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not (meta := self._home / "meta.yaml").exists():
                files.write(meta, b"version: 1\n")
            if self.path.exists():
                self.backup.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    _link(self.path, self.backup)
            # Readable by the owner only: it names machines and holds ciphertext.
            files.write(self.path, text.encode(), 0o600, durable=True)
        except OSError as error:
            raise unwritable(error, self.path) from error

    def edit(self, change: Callable[[list[Properties]], list[Properties]]) -> None:
        """Change the resources of the checkpoint on disk; raise `DamagedState` if it is damaged."""
        resources = ((self.read() or {}).get("latest") or {}).get("resources") or []
        if (changed := change(resources)) != resources:
            document = reading.file(self.path, limit=_LARGEST).json(Properties)
            document["checkpoint"]["latest"]["resources"] = changed
            self.keep()
            self.write(json.dumps(document) + "\n")

    def remove(self) -> None:
        """Delete the stack's files."""
        for path in (self.path, self.backup, self.path.with_name(f"{self.path.name}.attrs")):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.kept, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.locks.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stack's lock; raise `Locked` if another run holds it.

        Check, write, check again, as the CLI does: of two runs that start together, both see the
        other and both give way.
        """
        self.require_free()
        own = self.locks / f"{uuid.uuid4()}.json"
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(os.getuid())
        holder = _Holder(
            pid=os.getpid(),
            username=user,
            hostname=socket.gethostname(),
            timestamp=checkpoint.timestamp(),
        )
        try:
            self.locks.mkdir(parents=True, exist_ok=True)
            files.write(own, holder.model_dump_json().encode())
        except OSError as error:
            raise unwritable(error, own) from error
        try:
            self.require_free(own)
            yield
        finally:
            own.unlink(missing_ok=True)

    def require_free(self, own: Path | None = None) -> None:
        """Remove the locks of ended processes; raise `Locked` if another run holds the stack."""
        for path in sorted(self.locks.glob("*.json")):
            if path == own:
                continue
            holder = None
            with contextlib.suppress(Unreadable):
                holder = reading.file(path).json(_Holder)
            if holder and holder.has_ended():
                path.unlink(missing_ok=True)
                continue
            raise Locked(
                f"the stack is locked by {holder or f'a run whose lock cannot be read: {path}'}",
                f"wait for it; if it is gone: rm {quote(str(path))}",
            )


class _Holder(BaseModel):
    pid: PositiveInt
    username: str
    hostname: str
    timestamp: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of {self.username} on {self.hostname} since {self.timestamp}"

    def has_ended(self) -> bool:
        """Return whether the process has ended; false for a process of another host."""
        if self.hostname != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
            # A zombie has no memory.
            statm = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii")
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return statm.startswith("0 ")


def _link(path: Path, other: Path) -> None:
    """Hard-link a file, which needs no space; copy it where the filesystem has no links."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copy2(path, other)


def _parsed(path: Path) -> Properties:
    return checkpoint.parse(reading.file(path, limit=_LARGEST))
