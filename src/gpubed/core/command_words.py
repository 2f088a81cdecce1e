"""Which texts can be words of a command line: what was typed, or stands in a file."""

from __future__ import annotations


def fault(text: str) -> str:
    r"""Say why a text can be no word of a command line; empty where it can be one.

    Bytes that are not UTF-8 come from a shell, and `\ud800` from a file, as lone surrogates.
    """
    if "\0" in text:
        return "has a NUL character, which no command line can hold"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not UTF-8 text (character {error.start + 1})"
    return ""
