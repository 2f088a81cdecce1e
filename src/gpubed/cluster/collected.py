"""What has been collected of a cluster's shared storage, so that nothing comes twice.

`collected.json` remembers how each thing looked when it came. How it looks the nodes say: one that
lies keeps its own data from coming, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.cluster import lease as leases
from gpubed.core import files, reading
from gpubed.core.reading import Unreadable
from gpubed.nodes.cluster import Cluster


class Memory(BaseModel):
    """What is remembered.

    Attributes:
        of: The id of the node that has the storage: another one has another.
        place: The folder, below that of all checkpoints, of those that came from there.
        looked: How each thing looked when it came, by where it is.
        changed: When each checkpoint changed that came, as its storage tells it.
        lacks: What did not come with it and would go with the storage, in sentences.
    """

    model_config = ConfigDict(extra="ignore")  # a newer version may keep more

    version: Literal[1] = 1
    of: str
    place: Annotated[str, Field(pattern=r"^[0-9]{8}-[0-9]{6}$")]
    looked: dict[str, str] = {}
    changed: dict[str, float] = {}
    lacks: dict[str, list[str]] = {}


@contextmanager
def remembered(cluster: Cluster) -> Iterator[Memory]:
    """Give what is remembered, and keep what becomes of it, however the work ends."""
    memory = load(cluster)
    try:
        yield memory
    finally:
        with suppress(OSError):  # a full disk; then something comes twice
            files.write(cluster.paths.collected, memory.model_dump_json(indent=1).encode())


def load(cluster: Cluster) -> Memory:
    """Return what is remembered of the present storage; what cannot be read counts as nothing."""
    storage = _storage(cluster)
    with suppress(Unreadable):
        found = reading.file(cluster.paths.collected).json(Memory)
        if found.of == storage:
            return found
    # Never one that there is: what came from another storage stays as it is.
    return Memory(of=storage, place=leases.now().strftime("%Y%m%d-%H%M%S"))


def _storage(cluster: Cluster) -> str:
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    return next((node.id for node in allocation.nodes if node.name == name), allocation.head.id)
