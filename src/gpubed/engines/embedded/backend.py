"""The file backend: where a stack's state lies and how it is replaced safely."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, unwritable
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.failures import DamagedState, Refusal
from gpubed.engines.embedded.values import Properties

_KEPT = 10
_LONGEST = 500  # of what is said about a name of any length
_LARGEST = 2**29  # bytes; ten thousand nodes have less


@dataclass(frozen=True)
class StackFile:
    """One stack in a file backend.

    Args:
        root: The folder that contains `.pulumi/`.
        project: The project's name.
        stack: The stack's name.
    """

    root: Path
    project: str
    stack: str

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self._home / "stacks" / self.project / f"{self.stack}.json"

    @property
    def backup(self) -> Path:
        """The checkpoint before the last write."""
        return self.path.with_name(f"{self.path.name}.bak")

    @property
    def kept(self) -> Path:
        """The folder of the states before each of the last runs."""
        return self._home / "backups" / self.project / self.stack

    @property
    def locks(self) -> Path:
        """The folder of this stack's lock files."""
        return self._home / "locks" / "organization" / self.project / self.stack

    @property
    def _home(self) -> Path:
        return self.root / ".pulumi"

    def read(self) -> Properties | None:
        """Returns the checkpoint, or None when there is no such stack.

        Raises:
            DamagedState: The file is damaged.
            GpubedError: It is too new.
        """
        self._refuse_other_layouts()
        try:
            return _parsed(self.path)
        except reading.Missing:
            return None
        except Unreadable as error:
            raise DamagedState(f"the state {error.message}", self._repair()) from None

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Tells which state is damaged, and what repairs it.

        Raises:
            DamagedState: What the body has found wrong.
        """
        try:
            yield
        except DamagedState as error:
            message = f"the state {self.path} cannot be read: {error.message[:_LONGEST]}"
            raise DamagedState(message, error.hint or self._repair()) from None

    def _repair(self) -> str:
        """Returns the command that brings back the newest earlier state that can be read."""
        here = quote(str(self.path))
        if self.path.exists() and not os.access(self.path, os.R_OK):
            # Whole, as far as anybody knows: another user, such as root, has run gpubed here.
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
        """Keeps the present checkpoint among the last states, where the CLI keeps them too."""
        if not self.path.exists():
            return
        with contextlib.suppress(OSError):  # a copy the less is no reason to stop
            self.kept.mkdir(parents=True, exist_ok=True)
            earlier = sorted(self.kept.iterdir())
            # Clocks are put back; the newest state must be the last by name all the same.
            last = max((_number(path) for path in earlier), default=0)
            _second(self.path, self.kept / f"{self.stack}.{max(time.time_ns(), last + 1)}.json")
            for old in sorted(self.kept.iterdir())[:-_KEPT]:
                old.unlink()

    def write(self, text: str) -> None:
        """Replaces the checkpoint, durably, keeping the previous content as `.bak`.

        Whatever goes wrong, the old content stays whole.

        Raises:
            GpubedError: The folder cannot be written.
        """
        try:
            self._write(text)
        except OSError as error:
            raise unwritable(error, self.path) from error

    def edit(self, change: Callable[[list[Properties]], list[Properties]]) -> None:
        """Changes the resources of the checkpoint as they are on disk, whoever wrote them.

        Raises:
            DamagedState: The file is damaged.
        """
        latest = (self.read() or {}).get("latest") or {}
        resources = latest.get("resources") or []
        if (changed := change(resources)) == resources:
            return
        document = reading.file(self.path, limit=_LARGEST).json(Properties)
        document["checkpoint"]["latest"]["resources"] = changed
        self.keep()
        self.write(json.dumps(document) + "\n")

    def _write(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        meta = self._home / "meta.yaml"
        if not meta.exists():
            files.write(meta, b"version: 1\n")
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            # State names machines and holds ciphertext: for the owner only.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.backup.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # a copy the less is no reason to stop
                    _second(self.path, self.backup)
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Deletes the stack's files."""
        for path in (self.path, self.backup, self.path.with_name(f"{self.path.name}.attrs")):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.kept, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.locks.rmdir()

    def _refuse_other_layouts(self) -> None:
        stacks = self._home / "stacks"
        for suffix in (".gz", ".zst"):
            if self.path.with_name(self.path.name + suffix).exists():
                raise Refusal("compressed state", f"{self.path.name}{suffix}")
        if not (self._home / "meta.yaml").exists() and any(stacks.glob("*.json")):
            raise Refusal("the legacy state layout", str(stacks))


def _second(path: Path, other: Path) -> None:
    """Give a file a second name, which needs no space; copy it where there are no such names."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copy2(path, other)


def _number(path: Path) -> int:
    """Return the time in the name of a kept state; 0 where something else has that name."""
    number = path.name.split(".")[-2:-1]
    return int(number[0]) if number and number[0].isdecimal() else 0


def _parsed(path: Path) -> Properties:
    return checkpoint.parse(reading.file(path, limit=_LARGEST))
