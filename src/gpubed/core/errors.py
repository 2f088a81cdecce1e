"""Errors a user can act on: what failed, why, and the command that fixes it.

Each class has its exit code. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import re
import shlex
from pathlib import Path


class GpubedError(Exception):
    """A failure that the user can understand; `hint` is the command or edit that fixes it."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def headline(self) -> str:
        """The message's first line, without output of a node after it."""
        return self.message.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(GpubedError):
    """The command line or the specification is wrong."""

    exit_code = 2


class PrerequisiteMissing(GpubedError):
    """A required program, daemon or permission is missing."""

    exit_code = 3


def unwritable(error: OSError, path: Path | None = None) -> PrerequisiteMissing:
    """Return the error about an unwritable file: `path`, or the one that `error` names."""
    what = path or error.filename2 or error.filename or "a file of the project"
    return PrerequisiteMissing(
        f"{what} cannot be written: {error.strerror}",
        "make its folder writable and free some space",
    )


def in_the_way(error: OSError) -> PrerequisiteMissing:
    """Return the error about a path of the project at which something else exists."""
    what = error.filename2 or error.filename or "a file of the project"
    if error.errno == errno.ENOTDIR:  # one of the path's folders is a file
        what = next((folder for folder in Path(what).parents if folder.is_file()), what)
    return PrerequisiteMissing(
        f"{what} is not what gpubed keeps there: {error.strerror}",
        f"move it away: {shlex.join(['mv', f'{what}', f'{what}.aside'])}",
    )


def is_about_a_name(error: OSError) -> bool:
    """Return whether something else exists at the path."""
    kinds = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EFBIG)
    return error.errno in kinds


def is_about_the_disk(error: OSError) -> bool:
    """Return whether the disk is full or read-only, or permissions are missing."""
    kinds = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
    return error.errno in kinds


class Refused(GpubedError):
    """The testbed refused a request."""

    exit_code = 4


class Locked(GpubedError):
    """Another run holds the cluster."""

    exit_code = 5


def of_cluster(hint: str, cluster: str) -> str:
    """Return a hint with CLUSTER replaced by the cluster's name."""
    return re.sub(r"\bCLUSTER\b", cluster, hint)
