"""What is below a folder of a node, as its `find` lists it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpubed.core.copying import as_name
from gpubed.core.errors import GpubedError
from gpubed.nodes.ssh import SSH

NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"
"""Stands in a command's output for what is none."""
_LIST_S = 120.0
# Of each thing, what it is (`d` for a folder), its bytes, when it changed and its path.
_LIST = "find %s/ -mindepth 1 -printf '%%y\\t%%s\\t%%T@\\t%%P\\0' 2> /dev/null || true"
_ONE = re.compile(r"(.)\t([0-9]{1,18})\t(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\t(.+)", re.DOTALL)


@dataclass(frozen=True)
class Thing:
    """A file, folder or anything else.

    Attributes:
        kind: `f` for a file, `d` for a folder, or another letter of `find`'s.
        size: In bytes.
        changed: When it changed, in seconds since 1970, as it was written.
        path: Where it is, from the folder that was asked for.
    """

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
    """Return what is another text as soon as one of the things is another, or has changed."""
    told = sorted(f"{one.path}\t{one.kind}\t{one.size}\t{one.changed}" for one in things)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()
