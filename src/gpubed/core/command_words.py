"""Checks and quotes words of command lines and of OpenSSH's configuration."""

from __future__ import annotations

import os
from pathlib import Path

from gpubed.core.errors import UsageError


def fault(text: str) -> str:
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
            f"{text!r} holds a control character, or a variable such as $HOME, which OpenSSH and "
            "Ansible would expand",
            "rename that folder",
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
