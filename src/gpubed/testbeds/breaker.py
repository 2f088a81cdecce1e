"""What breaks nodes of a testbed on purpose: `gpubed chaos`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpubed.nodes.allocation import Node


@dataclass(frozen=True)
class Harm:
    """Something that is done to a node on purpose.

    Attributes:
        do: Does it.
        undo: Takes it back; may be repeated, and where nothing was done yet. None: nobody can.
        by_hand: The command by which a person takes it back.
        script: What takes it back on the node, for whoever finds it later; empty where that is
            no script.
        mounts: Whether the script mounts something.
    """

    do: Callable[[], None]
    undo: Callable[[], None] | None
    by_hand: str
    script: str = ""
    mounts: bool = False


class Breaker(ABC):
    """Breaks nodes on purpose, from outside: it needs none of their networks.

    Every method only says what would be done. Volumes are out of its reach.
    """

    @abstractmethod
    def killed(self, node: Node) -> Harm:
        """End a node as a power cut does."""

    @abstractmethod
    def removed(self, node: Node) -> Harm:
        """Remove a node, with what is on its own disk."""

    @abstractmethod
    def frozen(self, node: Node) -> Harm:
        """Let a node do nothing, and keep all that it has."""

    @abstractmethod
    def cut(self, node: Node, purpose: Literal["control", "experiment"]) -> Harm:
        """Take a node off one of its networks."""

    @abstractmethod
    def scripted(self, node: Node, do: str, undo: str, *, mounts: bool = False) -> Harm:
        """Run shell scripts as root of a node; `mounts` is for those that mount something."""
