"""Removes erroneous values from a specification, so that the rest can be checked, too.

The result is used for checks only. A problem found in it counts only if the removed values cannot
be its cause: a false error is worse than one that the next `check` finds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpubed.core.located import Location

# Besides the backend, locations without which the rest cannot be checked.
_NEEDED = {(), ("nodes",)}
# Sections whose errors cannot cause problems elsewhere.
_APART = {"version", "owner", "services", "firewall", "lease", "may_reboot", "python"}
_UNKNOWN = "extra_forbidden"
# Keys that are checked across all groups: their problems do not count if one group lacks them.
_OVER_ALL = {
    "count": {"gpus"},
    "gpus": {"gpus", "simulate"},
    "simulate": {"gpus", "simulate"},
}


@dataclass
class SecondLook:
    """A specification without its erroneous values.

    Attributes:
        data: The file's data without them.
        left_out: The locations of the removed values.
        nodes_alone: Whether only problems of nodes count.
        in_doubt: Keys of nodes whose problems do not count.
    """

    data: dict[str, Any]
    left_out: list[Location] = field(default_factory=list)
    nodes_alone: bool = False
    in_doubt: set[str] = field(default_factory=set)

    def believes(self, path: Location) -> bool:
        """Return whether a problem at a location cannot be caused by the removed values."""
        is_of_nodes = path[:1] == ("nodes",)
        if (self.nodes_alone and not is_of_nodes) or self.in_doubt.intersection(path[2:3]):
            return False
        # The backend's hosts and kinds refer to groups by name and number.
        renamed = any(one[2:3] in (("name",), ("count",)) for one in self.left_out)
        if renamed and path[:1] == ("backend",):
            return False
        return not any(_holds(one, path) or _holds(path, one) for one in self.left_out)

    def leave_out(self, kind: str, path: Location) -> None:
        """Remove a value, or the part that contains it, if that is possible."""
        self.left_out.append(path if path[:1] == ("nodes",) else path[:1])
        if path[0] == "nodes" and len(path) > 1:
            self._of_group(kind, path)
        elif path[0] == "version":
            self.data["version"] = 1
        else:
            self.data.pop(str(path[0]), None)
            self.nodes_alone |= path[0] not in _APART
            self.in_doubt |= _OVER_ALL["gpus"] if path[0] == "recipe" else set()

    def _of_group(self, kind: str, path: Location) -> None:
        group = self.data["nodes"][path[1]]
        # An error of a whole group is about two keys that exclude each other.
        keys = {str(path[2])} if len(path) > 2 else {"min", "simulate"}
        if not isinstance(group, dict):
            return
        if kind == _UNKNOWN and len(path) > 3:
            group = group.get(path[2], {})  # removed already if another key in it is wrong
            keys = {str(path[3])}
        for key in keys:
            group.pop(key, None)
        if "count" in keys:
            group["count"] = 1
            group.pop("min", None)
        self.in_doubt.update(*(_OVER_ALL.get(key, ()) for key in keys))


def without(data: dict[str, Any], faults: Iterable[tuple[str, Location]]) -> SecondLook | None:
    """Remove the erroneous values from a specification; None if the rest cannot be checked then.

    `faults` has the kind of each error, as pydantic names it, and its location.
    """
    look = SecondLook(copy.deepcopy(data))
    for kind, path in faults:
        if path in _NEEDED or path[0] == "backend":
            return None
        look.leave_out(kind, path)
    return look


def _holds(place: Location, other: Location) -> bool:
    return other[: len(place)] == place
