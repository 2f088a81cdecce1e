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
_NAMED = 20
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


@contextmanager
def remembered(cluster: Cluster) -> Iterator[Memory]:
    """Yield the memory of the present storage, and write it back even if the work fails."""
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    nodes = (node.id for node in allocation.nodes if node.name == name)
    # A new folder, so that copies from another storage stay as they are.
    place = leases.now().strftime("%Y%m%d-%H%M%S")
    memory = Memory(of=next(nodes, allocation.head.id), place=place)
    with suppress(Unreadable):
        found = reading.file(cluster.paths.collected).json(Memory)
        memory = found if found.of == memory.of else memory
    try:
        yield memory
    finally:
        with suppress(OSError):  # a full disk; something is then copied twice
            files.write(cluster.paths.collected, memory.model_dump_json(indent=1).encode())


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
    things = []
    for one in filter(None, said.split("\0")):
        if not (found := _ONE.fullmatch(one)):
            raise GpubedError(f"what is in {folder} is listed as {one[:80]!r}", "look at the head")
        kind, size, changed, path = found.groups()
        things.append(
            Thing(kind, int(size), changed, PurePosixPath(*map(as_name, path.split("/"))))
        )
    return things


def looks(things: Iterable[Thing]) -> str:
    """Return a digest of entries, which changes when one of them does."""
    told = sorted(f"{one.path}\t{one.kind}\t{one.size}\t{one.changed}" for one in things)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def named(sentences: list[str]) -> list[str]:
    """Return the first sentences; users may write any number of odd things there."""
    more = [f"{len(sentences) - _NAMED} more are not named"] if len(sentences) > _NAMED else []
    return [*sentences[:_NAMED], *more]
