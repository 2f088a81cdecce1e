"""Reads shards of images: tar files in WebDataset's layout, as job `prepare` writes them.

The job also writes an index of each shard with the places of its images. Without an index, a reader
must go through the whole shard.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

# An image's name, a function that reads it, and the number of its class.
Item = tuple[str, Callable[[], bytes], int]
# An image in an index: name of its file in the shard, first byte, length in bytes, class.
Place = tuple[str, int, int, int]
_REPAIR = "stage it again, or prepare it anew"


class Unusable(Exception):
    """A dataset, or a file of it, cannot be used; says which and why."""


def all_of(shard: Path) -> Iterator[Item]:
    """The images of a shard, each read on demand.

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


class Shard:
    """An open shard with an index; only the requested images are read.

    Args:
        path: The shard.
        images: Its number of images.

    Raises:
        Unusable: The shard or its index is missing or broken, or they do not belong together.
    """

    def __init__(self, path: Path, images: int) -> None:
        size, self._places = _index(path)
        if len(self._places) != images:
            told = f"{len(self._places)} images are in the index, and {images} in dataset.json"
            raise _apart(path, told)
        try:
            there = path.stat().st_size
            if there != size:
                raise _apart(path, f"the index is of {size} bytes, and the shard has {there}")
            self._path, self._file = path, path.open("rb")
        except OSError as error:
            raise _broken(path, error) from error

    def close(self) -> None:
        """Closes the file; images cannot be read any more."""
        self._file.close()

    def image(self, number: int) -> Item:
        """An image by its number from 0; it can be read while the shard is open."""
        place = self._places[number]
        read = partial(_at, self._path, self._file, place)
        return f"{place[0]} in {self._path}", read, place[3]


class Opened:
    """Open shards by name; the oldest is closed if there are too many.

    Args:
        folder: Folder of the shards.
        images: Number of images of each.
        most: Largest number of open shards.
    """

    def __init__(self, folder: Path, images: Mapping[str, int], most: int) -> None:
        self._folder, self._images, self._most = folder, images, most
        self._open: dict[str, Shard] = {}

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._close_first()

    def __getitem__(self, name: str) -> Shard:
        if name not in self._open:
            if len(self._open) == self._most:
                self._close_first()
            self._open[name] = Shard(self._folder / name, self._images[name])
        return self._open[name]

    def _close_first(self) -> None:
        self._open.pop(next(iter(self._open))).close()


def _index(shard: Path) -> tuple[int, list[Place]]:
    """The size of a shard in bytes and its images, from its index."""
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
    """Reads an image at its place, and checks that it is there."""
    name, start, length, _ = place
    try:
        file.seek(start - tarfile.BLOCKSIZE)
        found = file.read(tarfile.BLOCKSIZE + length)
    except (OSError, ValueError) as error:
        raise _broken(shard, error) from error
    # In a tar file, a header with the file's name precedes the content.
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
