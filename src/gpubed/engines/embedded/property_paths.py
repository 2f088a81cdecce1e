"""Property paths such as `disk.size` or `links[0]["rate"]`, for ignoreChanges."""

from __future__ import annotations

import re
from typing import Any

from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.values import Properties, Secret

_STEP = re.compile(r"""\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]""")
_ABSENT = object()


def parse(path: str) -> list[str | int]:
    """Splits a path into keys and indexes.

    Raises:
        Refusal: The path has a wildcard or cannot be read.
    """
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if not found or "*" in found[0]:
            raise Refusal(f"the property path {path!r}", "ignoreChanges")
        key, index, quoted = found.groups()
        steps.append(int(index) if index else key or quoted.replace('\\"', '"'))
        position = found.end()
    return steps


def keep_old(new: Properties, old: Properties, ignored: list[str]) -> Properties:
    """Returns the new inputs with every ignored path put back to its old value."""
    kept: Any = new
    for path in ignored:
        steps = parse(path)
        kept = _put(kept, steps, _get(old, steps))
    return dict(kept)


def _get(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        value = value.value if isinstance(value, Secret) else value
        is_key = isinstance(value, dict) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not is_key and not is_index:
            return _ABSENT
        value = value[step]
    return value


def _put(container: Any, steps: list[str | int], value: Any) -> Any:
    """Copies only what lies on the path; a path that leads nowhere changes nothing."""
    if not steps:
        return value
    if isinstance(container, Secret):
        return Secret(_put(container.value, steps, value))
    step, rest = steps[0], steps[1:]
    if isinstance(container, list) and isinstance(step, int):
        if step >= len(container) or value is _ABSENT:
            return container
        return [_put(v, rest, value) if i == step else v for i, v in enumerate(container)]
    if not isinstance(container, dict) or (rest and step not in container):
        return container
    copy = dict(container)
    copy[str(step)] = _put(copy.get(str(step)), rest, value)
    return {key: item for key, item in copy.items() if item is not _ABSENT}
