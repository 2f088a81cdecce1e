"""Checkpoints that are complete or absent, each with its SHA-256 in a file beside it.

The files are `images-000000640000.pt` and `images-000000640000.pt.sha256`, which `sha256sum -c`
reads, too. The name counts images that the model has seen, as steps depend on the number of ranks.
A damaged checkpoint, or a file that is no checkpoint of this job, is renamed with its SHA-256 to
end in `.damaged`.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_FILES, _DRAFTS = "images-*.pt", "images-*.part"
HOST_MEMORY = "DefaultCPUAllocator"  # in torch's RuntimeError if memory is short


class NotWritten(Exception):
    """A checkpoint could not be written; says why, and which one remains."""


class Unread(Exception):
    """A checkpoint cannot be read, but may be undamaged; says why."""


class NotOne(Exception):
    """A file can be read, but is no checkpoint of this job; says why."""


class Checkpoints:
    """The checkpoints of one training.

    Args:
        folder: Their folder; made with the first one.
        kept: Number of checkpoints to keep.
        say: Called with messages for the owner.
    """

    def __init__(self, folder: Path, kept: int, say: Callable[[str], None] = print) -> None:
        self._folder, self._kept, self._say = folder, kept, say

    def all(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self._folder.glob(_FILES))

    def newest(self, holds: Collection[str] = ()) -> tuple[Path, dict[str, Any]] | None:
        """The newest undamaged checkpoint and its content; damaged ones are reported and set aside.

        Args:
            holds: Names that its content must have.

        Raises:
            Unread: The storage fails to read one.
        """
        for path in reversed(self.all()):
            try:
                if is_whole(path):
                    return path, read(path, holds)
                why = "is damaged: it does not have the SHA-256 beside it"
            except NotOne as error:
                why = f"cannot be gone on from, though it has the SHA-256 beside it: {error}"
            except OSError as error:
                said = f"checkpoint {path} cannot be read, and may be whole all the same: {error}"
                raise Unread(f"{said}; repair the storage, then start it again") from error
            self._say(f"checkpoint {path} {why}; {_set_aside(path)}")
        return None

    def write(self, images: int, state: dict[str, Any]) -> None:
        """Writes a checkpoint, then removes the oldest beyond those to keep.

        Drafts of writers that were killed are removed first: they would fill the storage over time.

        Args:
            images: Number of images that the model has seen.
            state: The content that `read` returns.

        Raises:
            NotWritten: There is no room for it, or no permission; earlier ones remain.
        """
        path = self._folder / f"images-{images:012d}.pt"
        draft = path.with_suffix(".part")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove(self._folder.glob(_DRAFTS))
            with draft.open("wb") as file:
                torch.save(state, file)
                _settle(file.fileno())
            _write_text(_sum_of(path), f"{digest(draft)}  {path.name}\n")
            draft.replace(path)
            _settle_folder(self._folder)
        except (OSError, RuntimeError) as error:
            self._remove([draft] if path.exists() else [draft, _sum_of(path)])
            raise NotWritten(self._reason(path, error)) from error
        # Another one may count more images: a damaged one that could not be set aside.
        for old in (old for old in self.all()[: -self._kept] if old != path):
            self._remove([old, _sum_of(old)])

    def _remove(self, paths: Iterable[Path]) -> None:
        """Removes files; a failure is reported, but does not end a training."""
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._say(f"{path} could not be removed: {error}")

    def _reason(self, path: Path, error: Exception) -> str:
        last = next(iter(reversed(self.all())), None)
        instead = f"the one before stays: {last}" if last else "there is none before it"
        return f"checkpoint {path} could not be written: {_cause(error)}; {instead}"


def _cause(error: BaseException) -> BaseException:
    """The OSError behind an exception of torch, if there is one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


def read(path: Path, holds: Collection[str] = ()) -> dict[str, Any]:
    """Returns a checkpoint's content: tensors, numbers and names, never code.

    Tensors are loaded to the host: no GPU may have room for all of a sharded model.

    Args:
        holds: Names that the content must have.

    Raises:
        NotOne: It is another kind of file; no code of it was executed.
        OSError: The storage fails to read it.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any exception is possible, as the bytes may be anything
        _tell_what_is_no_content(error, path)
        # torch's own message advises to load the file as code, which may be malicious.
        kind = type(error).__name__
        raise NotOne(f"torch finds no tensors, numbers and names in it ({kind})") from None
    if not isinstance(state, dict):
        raise NotOne("it is another program's: it has no names")
    if lacks := [name for name in holds if name not in state]:
        raise NotOne(f"it is another program's, without {', '.join(lacks)}")
    return state


def _tell_what_is_no_content(error: Exception, path: Path) -> None:
    """Raises errors that are not about the file's content: too little memory, or failing storage.

    Raises:
        OSError: The storage fails to read the file.
    """
    if isinstance(error, MemoryError) or HOST_MEMORY in str(error):
        raise error
    # For a file that was cut off, torch seeks to before its start, which gives EINVAL.
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
        raise error
    digest(path)


def is_whole(path: Path) -> bool:
    """Whether a checkpoint has the checksum in the file beside it.

    Raises:
        OSError: One of the two cannot be read, which is no damage.
    """
    try:
        told = _sum_of(path).read_bytes().split()
    except FileNotFoundError:
        return False
    return told[:1] == [digest(path).encode()]


def digest(path: Path) -> str:
    """A file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _set_aside(path: Path) -> str:
    """Renames a checkpoint, so that it does not count among those to keep; returns a message."""
    places = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    aside = next(place for place in places if not place.exists())
    try:
        path.rename(aside)
        with suppress(FileNotFoundError):
            _sum_of(path).rename(_sum_of(aside))
    except OSError as error:
        return f"it could not be set aside: {error}"
    return f"set aside as {aside.name}"


def _write_text(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        _settle(file.fileno())
    draft.replace(path)


def _settle(descriptor: int) -> None:
    os.fsync(descriptor)


def _settle_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _settle(descriptor)
    finally:
        os.close(descriptor)
