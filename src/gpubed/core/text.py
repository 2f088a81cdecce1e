"""Checks, quotes and cleans text, and finds the nearest name to a misspelt one."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpubed.core.errors import UsageError

# Control sequences of ECMA-48 (5th edition, section 5): CSI …, and strings such as OSC … ST.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
)
# Other control characters except tab and newline, and the bidi controls of Unicode's annex 9,
# which reorder text on the screen.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # cannot be encoded


def printable(text: str) -> str:
    """Return a text without control sequences, control characters and bidi controls."""
    return _SURROGATE.sub("?", _CONTROL.sub("", _SEQUENCE.sub("", text)))


def nearest_name(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none'}"


def word_fault(text: str) -> str:
    r"""Return why a text cannot be a word of a command line, or an empty string if it can.

    Non-UTF-8 bytes from a shell and `\ud800` from a file arrive as lone surrogates.
    """
    if "\0" in text:
        return "has a NUL character, which no command line can hold"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not UTF-8 text (character {error.start + 1})"
    return ""


def ssh_path(path: str | Path) -> str:
    """Return a path quoted for OpenSSH's configuration, with `%` escaped.

    Raises `UsageError` for a control character, or a variable that OpenSSH or Ansible expands.
    """
    text = str(path)
    if not text.isprintable() or "${" in text or os.path.expandvars(text) != text:
        raise UsageError(
            f"{text!r} has a control character, or a variable such as $HOME, which OpenSSH and "
            "Ansible would expand",
            "rename that folder",
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
