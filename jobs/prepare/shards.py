"""Packs resized images into tar files: one `KEY.jpg` and one `KEY.cls` per image.

The layout is WebDataset's, which training code reads in order, without a seek per image.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Sample:
    """An image file and the index of its class."""

    path: Path
    label: int


@dataclass
class Packed:
    """What one rank has made."""

    shards: list[Path] = field(default_factory=list)
    images: int = 0
    broken: list[str] = field(default_factory=list)


def find(source: Path) -> tuple[list[str], list[Sample]]:
    """Returns the classes (the folders of `source`, by name) and all images below them."""
    classes = sorted(folder.name for folder in source.iterdir() if folder.is_dir())
    samples = [
        Sample(path, label)
        for label, name in enumerate(classes)
        for path in sorted((source / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    return classes, samples


def resized(path: Path, size: int, quality: int) -> bytes:
    """Returns an image as JPEG, its shorter side at most `size` pixels.

    Raises:
        OSError: The file is not an image, or is cut short.
    """
    with Image.open(path) as image:
        picture = image.convert("RGB")
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
    made, archive = Packed(), None
    for number, sample in samples:
        try:
            jpeg = resized(sample.path, size, quality)
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
            made.broken.append(str(sample.path))
            continue
        if archive is None or archive.offset >= shard_bytes:
            if archive:
                archive.close()
            made.shards.append(target / f"{prefix}-{len(made.shards):05d}.tar")
            archive = tarfile.open(made.shards[-1], "w")  # noqa: SIM115  # closed below
        _add(archive, f"{number:09d}.jpg", jpeg)
        _add(archive, f"{number:09d}.cls", str(sample.label).encode())
        made.images += 1
    if archive:
        archive.close()
    return made


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
