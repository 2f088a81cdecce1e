"""Shards of images: tar files in WebDataset's layout, as job `prepare` writes them.

Beside each it writes an index, which says where the images in it are. Without one, whoever wants
some of them must go through all.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

# What an image is called, how to read it, and the number of its class.
Item = tuple[str, Callable[[], bytes], int]
# What an index says of an image: its file in the shard, where that begins, its bytes, its class.
Place = tuple[str, int, int, int]
_REPAIR = "stage it again, or prepare it anew"


class Unusable(Exception):
    """A dataset, or a file of it, cannot be used; says which and why."""


def all_of(shard: Path) -> Iterator[Item]:
    """The images of a shard, each read when it is asked for.

    Raises:
        Unusable: The shard is missing, cut off, or no tar file.
    """
    try:
        with tarfile.open(shard, "r:") as archive:
            images: dict[str, tarfile.TarInfo] = {}
            for member in archive:
                key, _, suffix = member.name.rpartition(".")
                if suffix == "cls":
                    image, label = images.pop(key), int(_content(archive, member))
                    yield f"{image.name} in {shard}", partial(_content, archive, image), label
                else:
                    images[key] = member
    except (tarfile.TarError, OSError, ValueError, KeyError) as error:
        raise _broken(shard, error) from error


def some_of(shard: Path, images: int, first: int, last: int) -> Iterator[Item]:
    """A run of the images of a shard, by its index: nothing else of it is read.

    Args:
        images: How many the shard has.
        first: The first of the run, counted from 0.
        last: The one after the run.

    Raises:
        Unusable: The shard or its index is missing or broken, or they do not belong together.
    """
    size, places = _index(shard)
    if len(places) != images:
        raise _apart(shard, f"{len(places)} images are in the index, and {images} in dataset.json")
    try:
        with shard.open("rb") as file:
            there = os.fstat(file.fileno()).st_size
            if there != size:
                raise _apart(shard, f"the index is of {size} bytes, and the shard has {there}")
            for place in places[first:last]:
                yield f"{place[0]} in {shard}", partial(_at, shard, file, place), place[3]
    except OSError as error:
        raise _broken(shard, error) from error


def _index(shard: Path) -> tuple[int, list[Place]]:
    """The bytes of a shard and its images, by its index."""
    path = shard.with_suffix(".index.json")
    try:
        told = json.loads(path.read_text())
        places = [
            (str(name), int(start), int(length), int(label))
            for name, start, length, label in told["images"]
        ]
        return int(told["bytes"]), places
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"index {path} is broken: {error!r}; {_REPAIR}") from error


def _at(shard: Path, file: BinaryIO, place: Place) -> bytes:
    """An image by its place, if that is where its shard has it."""
    name, start, length, _ = place
    try:
        file.seek(start - tarfile.BLOCKSIZE)
        found = file.read(tarfile.BLOCKSIZE + length)
    except (OSError, ValueError) as error:
        raise _broken(shard, error) from error
    # A tar file has each file's name before it, in so many bytes.
    named = found[: tarfile.LENGTH_NAME].rstrip(b"\0")
    if named != name.encode() or len(found) != tarfile.BLOCKSIZE + length:
        raise _apart(shard, f"{name} is not at byte {start}")
    return found[tarfile.BLOCKSIZE :]


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    try:
        file = archive.extractfile(member)
        return file.read() if file else b""
    except (tarfile.TarError, OSError) as error:
        raise _broken(str(archive.name), error) from error


def _broken(shard: Path | str, error: Exception) -> Unusable:
    return Unusable(f"shard {shard} is broken: {error!r}; {_REPAIR}")


def _apart(shard: Path, why: str) -> Unusable:
    return Unusable(f"shard {shard} and its index do not belong together: {why}; {_REPAIR}")
