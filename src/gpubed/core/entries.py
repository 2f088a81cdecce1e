"""How what lists itself is found: a module is an entry if it has the entry point, at its top.

Its text is read, and nothing imported: the tab key does not wait, and a module that cannot be
imported is in nobody else's way.
"""

from __future__ import annotations

import re
from pathlib import Path


def names(folder: Path, *points: str) -> tuple[str, ...]:
    """Return the names of the modules of a folder that have one of the entry points, sorted.

    Args:
        folder: What is in folders of it is not looked at.
        points: Names of functions, or of what is assigned.
    """
    named = "|".join(points)
    point = re.compile(rf"^(?:def (?:{named})\(|(?:{named})(?:: [^=\n]+)? = )", re.MULTILINE)
    modules = (path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return tuple(sorted(p.stem for p in modules if point.search(p.read_text(encoding="utf-8"))))
