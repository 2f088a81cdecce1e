"""Lists a cluster's shared storage, and remembers what was collected (`collected.json`).

The nodes report sizes and times; a false report only keeps that node's own data from being copied.
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
# Prints the type (`d` for a folder), size in bytes, modification time and path of each entry.
_LIST = "find %s/ -mindepth 1 -printf '%%y\\t%%s\\t%%T@\\t%%P\\0' 2> /dev/null || true"
_ONE = re.compile(r"(.)\t([0-9]{1,18})\t(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\t(.+)", re.DOTALL)


class Memory(BaseModel):
    """What was collected from a storage."""

    model_config = ConfigDict(extra="ignore")  # a newer version may keep more

    version: Literal[1] = 1
    of: str  # the id of the node that has the storage
    # The subfolder for its checkpoints in the local folder of checkpoints.
    place: Annotated[str, Field(pattern=r"^[0-9]{8}-[0-9]{6}$")]
    looked: dict[str, str] = {}  # digest of each thing when it was copied, by its path
    changed: dict[str, float] = {}  # when each checkpoint changed, by the storage's clock
    lacks: dict[str, list[str]] = {}  # what could not be copied with a checkpoint, in sentences


@contextmanager
def remembered(cluster: Cluster) -> Iterator[Memory]:
    """Yield the memory of a storage, and write it back even if the work fails."""
    memory = load(cluster)
    try:
        yield memory
    finally:
        with suppress(OSError):  # a full disk; something is then copied twice
            files.write(cluster.paths.collected, memory.model_dump_json(indent=1).encode())


def load(cluster: Cluster) -> Memory:
    """Return the memory of the present storage; empty if unreadable or of another storage."""
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    nodes = (node.id for node in allocation.nodes if node.name == name)
    storage = next(nodes, allocation.head.id)
    with suppress(Unreadable):
        found = reading.file(cluster.paths.collected).json(Memory)
        if found.of == storage:
            return found
    # A new folder, so that copies from another storage stay as they are.
    return Memory(of=storage, place=leases.now().strftime("%Y%m%d-%H%M%S"))


@dataclass(frozen=True)
class Thing:
    """An entry below a folder, as `find` lists it: a file (`f`), folder (`d`) or other kind."""

    kind: str
    size: int
    changed: str
    path: PurePosixPath


def below(head: SSH, folder: str) -> list[Thing]:
    """Return all entries below a folder; none if the folder does not exist.

    Raises `NotAName` if a name leads out of the folder.
    """
    said = head.run(_LIST, folder, timeout=_LIST_S).stdout
    # Too long an output is cut off.
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
    """Return a digest of entries, which changes when one of them does."""
    told = sorted(f"{one.path}\t{one.kind}\t{one.size}\t{one.changed}" for one in things)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()
