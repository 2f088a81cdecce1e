"""Finds modules that define an entry point at their top level.

Modules are searched as text, without importing them: completion stays fast, and a module that
fails to import does not hide the others.
"""

from __future__ import annotations

import re
from pathlib import Path


def names(folder: Path, *points: str) -> tuple[str, ...]:
    """Return the sorted names of a folder's modules that define one of `points`."""
    named = "|".join(points)
    point = re.compile(rf"^(?:def (?:{named})\(|(?:{named})(?:: [^=\n]+)? = )", re.MULTILINE)
    modules = (path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return tuple(sorted(p.stem for p in modules if point.search(p.read_text(encoding="utf-8"))))
