"""Parses the output of commands on nodes, which is untrusted.

An invalid answer raises one error that names node, command and answer.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import TypeAdapter

from gpubed.core import reading
from gpubed.core.reading import Unreadable
from gpubed.nodes.ssh import SSH, CommandResult

_COMMAND, _ANSWER = 60, 80  # characters of the command and the answer in an error
_WHOLE = re.compile(r"[0-9]{1,18}")  # ASCII digits only, and a bounded number of them
_NUMBER = re.compile(r"[+-]?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
T = TypeVar("T")


class Misfit(Unreadable):
    """A node's answer is not of the expected form."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(message)
        self.node = node


@dataclass(frozen=True)
class Answer:
    """The output of a command on a node."""

    node: str
    command: str
    text: str

    def number(self) -> float:
        """Return the answer as a finite number, or raise `Misfit`."""
        text = self.text.strip()
        if _NUMBER.fullmatch(text):
            # `float` refuses several dots, and a dot alone.
            with suppress(ValueError):
                if math.isfinite(found := float(text)):
                    return found
        raise self.misfit("no number")

    def whole(self) -> int:
        """Return the answer as a whole number of at least 0, or raise `Misfit`."""
        found = whole(self.text.strip())
        if found is None:
            raise self.misfit("no whole number")
        return found

    def parts(self, count: int) -> list[Answer]:
        """Split the answer into exactly `count` words, each an answer, or raise `Misfit`."""
        words = self.text.split(maxsplit=count)
        if len(words) != count:
            raise self.misfit(f"not {count} words")
        return [self.part(word) for word in words]

    def part(self, text: str) -> Answer:
        """Return a part of the answer as an answer of its own."""
        return replace(self, text=text)

    def json(self, shape: type[T] | TypeAdapter[T]) -> T:
        """Parse the answer as JSON, as `reading.Document.json` does, or raise `Misfit`."""
        try:
            return reading.reply(self.text, "it").json(shape)
        except Unreadable as error:
            raise self.misfit(f"not of the expected form ({error.message})") from None

    def misfit(self, why: str) -> Misfit:
        """Return the error about this answer; `why` says what is wrong with it."""
        # Cut before `short`, which scans all of the text for unprintable characters.
        answer = reading.short(self.text[: 10 * _ANSWER].strip(), _ANSWER) or "no printable text"
        command = reading.short(self.command[: 10 * _COMMAND].strip(), _COMMAND)
        return Misfit(self.node, f"{self.node} answers `{command}` with {answer!r}: {why}")


def of(ssh: SSH, command: str, result: CommandResult) -> Answer:
    """Return a command's output as an `Answer`."""
    return Answer(ssh.node.name, command, result.stdout)


def whole(text: str) -> int | None:
    """Return a text as a whole number of at least 0, or None."""
    return int(text) if _WHOLE.fullmatch(text) else None
