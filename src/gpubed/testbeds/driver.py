"""What makes, changes and removes one kind of a testbed's resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubed.core.errors import GpubedError

Properties = Mapping[str, Any]
# What Pulumi gives in a preview for a value that is still to come (its SDK's `rpc.UNKNOWN`).
UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


@dataclass(frozen=True)
class Change:
    """What became of a resource's inputs.

    Attributes:
        replace: Keys that force a replacement.
        update: Keys that change in place.
    """

    replace: Sequence[str] = field(default=())
    update: Sequence[str] = field(default=())


def is_unknown(value: Any) -> bool:
    """Say whether an input depends on what the engine has yet to do: a preview shows it so.

    Also what depends on a resource that is about to be replaced is asked about in this way.
    """
    from pulumi.output import Unknown  # loaded where drivers run; most verbs need none of it

    return isinstance(value, Unknown)


class NodeFailed(GpubedError):
    """The testbed could not give a node; a cluster may do without it (`min`)."""


class Silent(GpubedError):
    """What is asked about does not answer: it may be there, and it may be gone."""


class Driver(ABC):
    """Makes, changes and removes one kind of resource of a backend.

    Every method may be repeated after a crash: `create` adopts what an earlier,
    interrupted call with the same inputs left behind; `delete` of something that
    is gone succeeds.
    """

    replace_keys: frozenset[str] | None = None
    """Inputs that cannot change in place; None means none can."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare old and new inputs; `result` is what `create` answered."""
        changed = sorted(key for key in {*olds, *news} if olds.get(key) != news.get(key))
        if self.replace_keys is None:
            return Change(replace=changed)
        return Change(
            replace=[key for key in changed if key in self.replace_keys],
            update=[key for key in changed if key not in self.replace_keys],
        )

    @abstractmethod
    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the resource; returns its id and what others need to know of it."""

    @abstractmethod
    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return what `create` would answer now, or None when it is gone.

        Raises:
            Silent: Nobody can tell; what is known of it stays.
        """

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Change the resource in place; returns the new result."""
        raise NotImplementedError(f"{type(self).__name__} replaces on every change")

    @abstractmethod
    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the resource."""
