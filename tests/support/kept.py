"""What a long test measured: kept in a file that is committed, with the day and the machine."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def machine() -> str:
    """Name what the figures depend on, not the machine itself."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} CPUs, {memory:.0f} GiB"


def measured(path: Path, **found: Any) -> None:
    """Write down what a whole run found, with the day and the machine."""
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), **found}
    path.write_text(json.dumps(about, indent=1) + "\n")


def section(path: Path, head: str, body: Callable[[dict[str, Any]], str]) -> str:
    """Return what a whole run found, as a section of a page."""
    if not path.exists():
        return head + "Not measured yet.\n"
    found = json.loads(path.read_text())
    about = f"Measured {found['date']} on {found['machine']}, load {found['load']} at the start"
    return f"{head}{about}{body(found)}\n"


def keep(path: Path, **parts: Any) -> None:
    """Write down what parts of a long test found; what others found stays.

    In the order that it has: a campaign's points are named in the order of its factors.
    """
    known = json.loads(path.read_text()) if path.exists() else {"measured": {}}
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    known["measured"] |= dict.fromkeys(parts, f"{today}, {machine()}")
    path.write_text(json.dumps({**known, **parts}, indent=1) + "\n")


def page(
    path: Path, head: str, sections: Mapping[str, Callable[[dict[str, Any]], Iterable[str]]]
) -> str:
    """Return what is kept, as a page."""
    if not path.exists():
        return head + "Not measured yet.\n"
    known = json.loads(path.read_text())
    return head + "\n".join(
        line
        for name, lines in sections.items()
        if name in known
        for line in (*lines(known), f"Measured {known['measured'][name]}.", "")
    )
