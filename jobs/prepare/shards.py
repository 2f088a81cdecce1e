"""Packs resized images into tar files: one `KEY.jpg` and one `KEY.cls` per image.

The layout is WebDataset's, which training code reads in order, without a seek per image. An index
beside each tar file has the places of its images, so that some of them can be read alone.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pictures
from pictures import Sample
from PIL import Image


@dataclass(frozen=True)
class Shard:
    """A complete shard, and its number of images."""

    path: Path
    images: int

    @property
    def index(self) -> Path:
        """The file with the places of its images."""
        return self.path.with_suffix(".index.json")


@dataclass
class Packed:
    """The results of one rank."""

    shards: list[Shard] = field(default_factory=list)
    images: int = 0
    broken: list[str] = field(default_factory=list)


class Draft:
    """A shard that is being written.

    Args:
        path: Path of the tar file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._archive = path, tarfile.open(path, "w")  # noqa: SIM115  # closed below
        self._places: list[tuple[str, int, int, int]] = []

    @property
    def bytes(self) -> int:
        """The present size of the shard."""
        return self._archive.offset

    def add(self, number: int, jpeg: bytes, label: int) -> None:
        """Appends an image and its class."""
        name = f"{number:09d}.jpg"
        self._places.append((name, self._append(name, jpeg), len(jpeg), label))
        self._append(f"{number:09d}.cls", str(label).encode())

    def close(self) -> Shard:
        """Closes the shard and writes its index: name, first byte, length and class per image."""
        self._archive.close()
        shard = Shard(self._path, len(self._places))
        told = {"bytes": self._path.stat().st_size, "images": self._places}
        shard.index.write_text(json.dumps(told) + "\n")
        return shard

    def _append(self, name: str, content: bytes) -> int:
        """Appends a file; returns the byte at which its content begins."""
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        self._archive.addfile(entry, io.BytesIO(content))
        blocks = -(-len(content) // tarfile.BLOCKSIZE)
        return self._archive.offset - blocks * tarfile.BLOCKSIZE


def resized(path: Path, size: int, quality: int) -> bytes:
    """Returns an image as JPEG, its shorter side at most `size` pixels.

    Raises:
        OSError, ValueError, SyntaxError: See `pictures.rgb`.
    """
    picture = pictures.rgb(path)
    shorter = min(picture.size)
    if shorter > size:
        width, height = (round(side * size / shorter) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def pack(
    samples: Iterable[tuple[int, Sample]],
    target: Path,
    prefix: str,
    *,
    size: int,
    quality: int,
    shard_bytes: int,
) -> Packed:
    """Writes numbered samples into shards `<prefix>-<n>.tar` of about `shard_bytes` each."""
    made, draft = Packed(), None
    for number, sample in samples:
        try:
            jpeg = resized(sample.path, size, quality)
        # Pillow raises SyntaxError for a damaged PNG.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            made.broken.append(f"{sample.path}: {error}")
            continue
        if draft and draft.bytes >= shard_bytes:
            made.shards.append(draft.close())
            draft = None
        draft = draft or Draft(target / f"{prefix}-{len(made.shards):05d}.tar")
        draft.add(number, jpeg, sample.label)
        made.images += 1
    if draft:
        made.shards.append(draft.close())
    return made
