"""The interface that makes, changes and removes one kind of a testbed's resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubed.core.errors import GpubedError

Properties = Mapping[str, Any]
# Pulumi's placeholder for an unknown value in a preview (its SDK's `rpc.UNKNOWN`).
UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


@dataclass(frozen=True)
class Change:
    """The keys of a resource's changed inputs that force a replacement, or change in place."""

    replace: Sequence[str] = field(default=())
    update: Sequence[str] = field(default=())


def is_unknown(value: Any) -> bool:
    """Return whether an input is unknown, as outputs of new and replaced resources in a preview."""
    from pulumi.output import Unknown  # imported here, since most verbs do without it

    return isinstance(value, Unknown)


class NodeFailed(GpubedError):
    """The testbed could not make a node; a cluster may do without it (`min`)."""


class Silent(GpubedError):
    """A resource does not answer, so it may or may not exist."""


class Driver(ABC):
    """Makes, changes and removes one kind of resource of a backend.

    All methods may be repeated after a crash: `create` adopts what an earlier, interrupted call
    with the same inputs left behind; `delete` of a resource that is gone succeeds.
    """

    replace_keys: frozenset[str] | None = None
    """Inputs whose change replaces the resource; None means all."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare old and new inputs; `result` is what `create` returned."""
        changed = sorted(key for key in {*olds, *news} if olds.get(key) != news.get(key))
        if self.replace_keys is None:
            return Change(replace=changed)
        return Change(
            replace=[key for key in changed if key in self.replace_keys],
            update=[key for key in changed if key not in self.replace_keys],
        )

    @abstractmethod
    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the resource; return its id and the outputs that other resources need."""

    @abstractmethod
    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the outputs that `create` would return now, or None if the resource is gone.

        Raises `Silent` if it is unknown whether the resource exists; Pulumi's state is then kept.
        """

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Change the resource in place; return the new outputs."""
        raise NotImplementedError(f"{type(self).__name__} replaces on every change")

    @abstractmethod
    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the resource."""
