"""What has been collected of a cluster's shared storage (`collected.json`), and what is there.

How a thing looks, nodes say: one that lies keeps its own data from coming, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.cluster import lease as leases
from gpubed.core import files, reading
from gpubed.core.copying import as_name
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Unreadable
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"
"""Stands in a command's output for what is none."""
_LIST_S = 120.0
# Of each thing, what it is (`d` for a folder), its bytes, when it changed and its path.
_LIST = "find %s/ -mindepth 1 -printf '%%y\\t%%s\\t%%T@\\t%%P\\0' 2> /dev/null || true"
_ONE = re.compile(r"(.)\t([0-9]{1,18})\t(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\t(.+)", re.DOTALL)


class Memory(BaseModel):
    """What came from a storage.

    Attributes:
        of: The id of the node that has the storage.
        place: The folder of its checkpoints, below that of all checkpoints here.
        looked: How each thing looked when it came, by its path.
        changed: When each checkpoint changed, by the storage's clock.
        lacks: What did not come with a checkpoint, in sentences.
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
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    nodes = (node.id for node in allocation.nodes if node.name == name)
    storage = next(nodes, allocation.head.id)
    with suppress(Unreadable):
        found = reading.file(cluster.paths.collected).json(Memory)
        if found.of == storage:
            return found
    # Never one that there is: what came from another storage stays as it is.
    return Memory(of=storage, place=leases.now().strftime("%Y%m%d-%H%M%S"))


@dataclass(frozen=True)
class Thing:
    """A file (`f`), folder (`d`) or anything else below a folder, as `find` lists it."""

    kind: str
    size: int
    changed: str
    path: PurePosixPath


def below(head: SSH, folder: str) -> list[Thing]:
    """Return all that is below a folder; nothing where there is no such folder.

    Raises:
        NotAName: A name leads out of the folder.
        GpubedError: It is more than can be listed, or no list.
    """
    said = head.run(_LIST, folder, timeout=_LIST_S).stdout
    # A command's output ends where there is too much of it.
    if said and not said.endswith("\0"):
        raise GpubedError(f"there is more in {folder} than can be listed", "remove some of it")
    return [_thing(folder, one) for one in said.split("\0") if one]


def _thing(folder: str, said: str) -> Thing:
    found = _ONE.fullmatch(said)
    if found is None:
        raise GpubedError(f"what is in {folder} is listed as {said[:80]!r}", "look at the head")
    kind, size, changed, path = found.groups()
    return Thing(kind, int(size), changed, PurePosixPath(*map(as_name, path.split("/"))))


def looks(things: Iterable[Thing]) -> str:
    """Return a digest of things, which changes when one of them does."""
    told = sorted(f"{one.path}\t{one.kind}\t{one.size}\t{one.changed}" for one in things)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()
