"""What a slice is made from, and the labels that name its owner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.config import Config


class _Model(BaseModel):
    # A resource also carries `backend` and `kind`, which are the engine's.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Group(_Model):
    """Nodes of one kind.

    Attributes:
        min: The fewest nodes that suffice.
        type: The requested hardware type.
        on_failure: What happens to the other nodes when some fail.
    """

    nodes: tuple[str, ...]
    min: int
    type: str = ""
    on_failure: str = ""


class SliceInputs(_Model):
    """All inputs of a slice; numbers arrive as floats, since Pulumi has no integers.

    Fields that do not name the slice have defaults: looking at a slice or releasing it needs no
    node.
    """

    cluster: str
    uuid: str
    testbed: Config
    request: str = ""
    public_key: str = ""
    duration: float = 0
    groups: dict[str, Group] = {}
    head: str = ""

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> SliceInputs:
        """Read them from a state; a newer version may have written it, with more options."""
        return cls.model_validate(inputs, extra="ignore")

    @property
    def name(self) -> str:
        """The slice's name."""
        return documents.slice_name(self.cluster, self.uuid)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes."""
        return tuple(name for group in self.groups.values() for name in group.nodes)

    @property
    def has_spares(self) -> bool:
        """Whether fewer nodes than requested suffice."""
        return any(group.min < len(group.nodes) for group in self.groups.values())


def digest(request: str) -> str:
    """Hash a request, to tell later what slivers were requested with."""
    return hashlib.sha256(request.encode()).hexdigest()[:16]


def description(cluster: str, uuid: str) -> str:
    """Return the labels of a cluster's slice, which the authority keeps with it."""
    return f"gpubed.cluster={uuid} gpubed.name={cluster}"


def owner(text: str) -> tuple[str, str] | None:
    """Return name and UUID of the cluster that a slice's description names."""
    labels = dict(word.split("=", 1) for word in text.split() if "=" in word)
    name, uuid = labels.get("gpubed.name"), labels.get("gpubed.cluster")
    return (name, uuid) if name and uuid else None
