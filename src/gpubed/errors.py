"""Errors a user can act on: what failed, why, and the command that fixes it.

The exit code belongs to the class, so every verb answers the same way.
Anything that is not a `GpubedError` is a bug and keeps its traceback.
"""

from __future__ import annotations


class GpubedError(Exception):
    """Something failed in a way that the user can understand and fix.

    Args:
        message: What failed and why, in one sentence.
        hint: The command or edit that fixes it, if one is known.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(GpubedError):
    """The command line or the specification is wrong."""

    exit_code = 2


class PrerequisiteMissing(GpubedError):
    """A program, a daemon or a permission that is needed is not there."""

    exit_code = 3


class Refused(GpubedError):
    """The testbed answered, and the answer was no."""

    exit_code = 4


class Locked(GpubedError):
    """Another run holds the cluster."""

    exit_code = 5
