"""Finds placeholders of `gpubed init` that the user has not replaced.

A line of a template that ends with `# fill in: WHAT` has a placeholder for its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from gpubed.core import located
from gpubed.core.located import Located, Location
from gpubed.spec import backend_config

_MARK = re.compile(r"#\s*fill in: (.+)$")


def left(backend: str, document: Located) -> Iterator[tuple[Location, str, str]]:
    """Yield each placeholder left in a specification: location, text, and what belongs there."""
    for location, text, wanted in _marked(backend):
        if _at(document.data, location) == text:
            yield location, text, wanted


@cache
def _marked(backend: str) -> tuple[tuple[Location, str, str], ...]:
    path = backend_config.template(backend)
    written, lines = located.read(path), path.read_text(encoding="utf-8").splitlines()
    found = [
        (location, _at(written.data, location), _MARK.search(lines[line - 1]))
        for location, line in written.lines.items()
    ]
    return tuple(
        (location, value, mark[1])
        for location, value, mark in found
        if mark and isinstance(value, str)
    )


def _at(data: Any, location: Location) -> Any:
    for key in location:
        try:
            data = data[key]
        except (LookupError, TypeError):
            return None
    return data
