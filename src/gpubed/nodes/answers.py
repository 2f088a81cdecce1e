"""Output of commands on nodes, parsed: a root user there may answer anything.

An answer that does not fit ends in one error that names node, command and answer.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from pydantic import TypeAdapter

from gpubed.core import reading
from gpubed.core.reading import Unreadable
from gpubed.nodes.ssh import SSH, CommandResult

_COMMAND, _SAID = 60, 80  # characters that are shown of them
_WHOLE = re.compile(r"[0-9]{1,18}")  # no digits of other scripts, and none without end
_NUMBER = re.compile(r"[+-]?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
T = TypeVar("T")


class Misfit(Unreadable):
    """A node answered something else than was asked for."""

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
        """Return it as a finite number; raise `Misfit` if it is none."""
        text = self.text.strip()
        if _NUMBER.fullmatch(text):
            try:
                if math.isfinite(found := float(text)):
                    return found
            except ValueError:
                pass  # several dots, or nothing but one
        raise self.misfit("no number")

    def whole(self) -> int:
        """Return it as a whole number from 0 on; raise `Misfit` if it is none."""
        found = whole(self.text.strip())
        if found is None:
            raise self.misfit("no whole number")
        return found

    def parts(self, count: int) -> list[Answer]:
        """Return its words, each as an answer; raise `Misfit` if they are not `count`."""
        words = self.text.split(maxsplit=count)
        if len(words) != count:
            raise self.misfit(f"not {count} words")
        return [self.part(word) for word in words]

    def part(self, text: str) -> Answer:
        """Return a part of it, which is judged by itself."""
        return Answer(self.node, self.command, text)

    def json(self, shape: type[T] | TypeAdapter[T]) -> T:
        """Return what its JSON says, as `reading.Document.json` does; raise `Misfit`."""
        try:
            return reading.reply(self.text, "it").json(shape)
        except Unreadable as error:
            raise self.misfit(f"not what was asked for ({error.message})") from None

    def misfit(self, why: str) -> Misfit:
        """Return what to raise where it does not fit; `why` says what it is."""
        # Far less is shown, and what cannot be shown is left out first.
        said = reading.short(self.text[: 10 * _SAID].strip(), _SAID) or "nothing that can be shown"
        asked = reading.short(self.command[: 10 * _COMMAND].strip(), _COMMAND)
        return Misfit(self.node, f"{self.node} answers `{asked}` with {said!r}: {why}")


def of(ssh: SSH, command: str, result: CommandResult) -> Answer:
    """Return what a command printed, with who was asked what."""
    return Answer(ssh.node.name, command, result.stdout)


def whole(text: str) -> int | None:
    """Return a whole number from 0 on; None where a text is no such."""
    return int(text) if _WHOLE.fullmatch(text) else None
