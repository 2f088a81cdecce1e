"""What a scenario is, and how scenarios list themselves."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, ClassVar

from gpubed import chaos
from gpubed.core import nearest
from gpubed.core.errors import UsageError
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds.breaker import Breaker, Harm

Status = Mapping[str, Any]
"""The document of `gpubed status`."""


class Unfit(UsageError):
    """A scenario cannot be played on this cluster, or on this node; says why."""


@dataclass(frozen=True)
class Held:
    """Something that must hold, and whether it does.

    Attributes:
        what: It in words.
        why: What was found instead, or in detail.
    """

    what: str
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Ground:
    """The cluster on which scenarios are played.

    Attributes:
        checkpoint: The folder below the shared storage's `checkpoints` that may be damaged.
    """

    cluster: Cluster
    breaker: Breaker
    checkpoint: str = ""


class Scenario(ABC):
    """A way to break one node, on one ground; a class is listed once it has a name.

    Attributes:
        name: What a user calls it.
        does: What it does, in words, of a node.
        holds: What must hold besides the usual, a line each.
        seen_as: What `gpubed status` may call the node meanwhile; ready where the node is well,
            as far as a status looks.
        by_itself: Whether the cluster is whole again without `gpubed up`, once it has ended.
        damages_checkpoints: Whether it has to be told whose.

    Args:
        ground: The cluster.
        node: The node.
        draw: Draws what else is to be chosen.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    holds: ClassVar[tuple[str, ...]] = ()
    seen_as: ClassVar[frozenset[str]]
    by_itself: ClassVar[bool] = False
    damages_checkpoints: ClassVar[bool] = False

    def __init__(self, ground: Ground, node: Node, draw: Random) -> None:
        self.ground, self.node, self.draw = ground, node, draw

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the nodes on which it can be played.

        Raises:
            Unfit: There is none; says why.
        """
        return ground.cluster.allocation.nodes

    @classmethod
    def promises(cls) -> Iterator[str]:
        """Say what must hold, a line each."""
        yield f"`gpubed status` calls the node {_or(cls.seen_as)}"
        yield from cls.holds
        if not cls.by_itself:
            yield "`gpubed up` repairs it, at the cost of no other node and no volume"
        yield "all nodes are ready" + (" by themselves" if cls.by_itself else "")
        yield "`gpubed audit` finds nothing amiss"
        yield "the shared storage has what was written before"

    @abstractmethod
    def harm(self) -> Harm:
        """Return what is done, and how it is undone; nothing is done yet.

        Raises:
            Unfit: It cannot be done now; says why.
        """

    def title(self) -> str:
        """Say what is done to the node."""
        return f"{self.name} on {self.node.name}: {self.does}"

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check what must hold while it lasts."""
        row = next(row for row in status["nodes"] if row["name"] == self.node.name)
        seen, what = row["state"], f"`gpubed status` calls {self.node.name} {_or(self.seen_as)}"
        yield Held(what, seen in self.seen_as, f"it says {seen}")

    def afterwards(self) -> Iterator[Held]:
        """Check what must hold besides the usual once it is over."""
        yield from ()


def _or(states: frozenset[str]) -> str:
    return " or ".join(sorted(states))


@cache
def scenarios() -> dict[str, type[Scenario]]:
    """Return all scenarios by name."""
    names = (module.name for module in pkgutil.iter_modules(chaos.__path__))
    modules = [vars(import_module(f"{chaos.__name__}.{name}")) for name in names]
    found = {
        value.name: value
        for module in modules
        for value in module.values()
        if isinstance(value, type) and issubclass(value, Scenario) and "name" in vars(value)
    }
    return dict(sorted(found.items()))


def named(name: str) -> type[Scenario]:
    """Return a scenario.

    Raises:
        UsageError: There is no such scenario.
    """
    if name not in scenarios():
        raise UsageError(f"there is no scenario {name!r}", nearest.suggestion(name, scenarios()))
    return scenarios()[name]
