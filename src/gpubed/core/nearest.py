"""The nearest name to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none'}"
