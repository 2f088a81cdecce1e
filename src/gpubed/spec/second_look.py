"""A specification without what is wrong in it, so that the rest is looked at all the same.

Nothing is made of it. What a testbed finds wrong counts only where what was left out cannot be
the reason: an error that is none is worse than one that the next `check` finds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpubed.core.located import Location

# Beside the backend, places without which nothing can be said of the others.
_NEEDED = {(), ("nodes",)}
# By themselves no reason for another problem elsewhere.
_APART = {"version", "owner", "services", "firewall", "lease", "may_reboot"}
_UNKNOWN = "extra_forbidden"
# What is judged over all groups, and so not to be believed where one of them lacks a key.
_OVER_ALL = {
    "count": {"gpus"},
    "gpus": {"gpus", "simulate"},
    "simulate": {"gpus", "simulate"},
}


@dataclass
class SecondLook:
    """What is left of a specification.

    Attributes:
        data: As the file has it, less what is wrong.
        left_out: The places of what is wrong.
        nodes_alone: Whether only what is said of nodes can be believed.
        in_doubt: Keys of nodes of which that cannot.
    """

    data: dict[str, Any]
    left_out: list[Location] = field(default_factory=list)
    nodes_alone: bool = False
    in_doubt: set[str] = field(default_factory=set)

    def believes(self, path: Location) -> bool:
        """Say whether a problem at a place is one whatever stands at those that are left out."""
        is_of_nodes = path[:1] == ("nodes",)
        if (self.nodes_alone and not is_of_nodes) or self.in_doubt.intersection(path[2:3]):
            return False
        # A backend's hosts and kinds are of groups by their names and numbers.
        renamed = any(one[2:3] in (("name",), ("count",)) for one in self.left_out)
        if renamed and path[:1] == ("backend",):
            return False
        return not any(_holds(one, path) or _holds(path, one) for one in self.left_out)

    def leave_out(self, kind: str, path: Location) -> None:
        """Leave out a value, or what it is part of, where that may go."""
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
        # One that is as a whole wrong asks for two things that exclude each other.
        keys = {str(path[2])} if len(path) > 2 else {"min", "simulate"}
        if not isinstance(group, dict):
            return
        if kind == _UNKNOWN and len(path) > 3:
            group = group.get(path[2], {})  # gone where another key in it is wrong
            keys = {str(path[3])}
        for key in keys:
            group.pop(key, None)
        if "count" in keys:
            group["count"] = 1
            group.pop("min", None)
        self.in_doubt.update(*(_OVER_ALL.get(key, ()) for key in keys))


def without(data: dict[str, Any], faults: Iterable[tuple[str, Location]]) -> SecondLook | None:
    """Leave out of a specification what is wrong in it.

    Args:
        data: What the file has.
        faults: The kind of each error, as pydantic calls it, and its place.

    Returns:
        What is left; None where the rest means nothing without it.
    """
    look = SecondLook(copy.deepcopy(data))
    for kind, path in faults:
        if path in _NEEDED or path[0] == "backend":
            return None
        look.leave_out(kind, path)
    return look


def _holds(place: Location, other: Location) -> bool:
    return other[: len(place)] == place
