"""Finds the images of a folder per class, and reads them with 8 bits for each colour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from PIL import Image, ImageOps

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
TRAIN, VALIDATION, TEST = "train", ("val", "valid", "validation"), "test"
_BITS_PER_SAMPLE = 258  # of TIFF


class Sample(NamedTuple):
    """An image file and the index of its class."""

    path: Path
    label: int


def parts(folder: Path) -> list[str]:
    """Returns a dataset's parts, such as `train` and `val`; none if its folders are classes."""
    there = set(_folders(folder))
    found = [name for name in (TRAIN, *VALIDATION, TEST) if name in there]
    return found if TRAIN in found and len(found) > 1 else []


def find(folder: Path) -> tuple[list[str], list[Sample]]:
    """Returns the classes (the folders of `folder`, by name) and all images below them.

    Links are followed; hidden files and folders, as `.ipynb_checkpoints`, are left out.

    Raises:
        OSError: A folder cannot be read, or a link leads nowhere.
        ValueError: It has no image in a folder per class.
    """
    classes = sorted(_folders(folder))
    samples = [
        Sample(path, label)
        for label, name in enumerate(classes)
        for path in sorted(_images(folder / name))
    ]
    if not samples:
        raise ValueError(f"{folder} has no image in a folder per class, as {folder}/cat/1.jpg")
    return classes, samples


def _folders(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        if not path.name.startswith("."):
            if path.is_symlink():
                path.stat()  # raises if it is broken
            if path.is_dir():
                yield path.name


def _images(folder: Path) -> Iterator[Path]:
    seen = set()
    for at, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        place = Path(at).stat()
        if (place.st_dev, place.st_ino) in seen:  # a circular link
            folders.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(at, name)


def _refuse(error: OSError) -> NoReturn:
    raise error


def rgb(file: Path | BinaryIO) -> Image.Image:
    """Returns an image, turned by its EXIF orientation, with 8 bits for each of three colours.

    Raises:
        OSError: The file is not an image, or is cut short.
        ValueError: It does not tell which values are black and white.
        SyntaxError: It is damaged.
    """
    with Image.open(file) as image:
        with suppress(Exception):  # for damaged EXIF data, Pillow raises any error
            ImageOps.exif_transpose(image, in_place=True)
        # Pillow would clip values above 255.
        if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
            bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
            scale = 255 / (2**bits - 1)
            return image.convert("I").point(lambda value: value * scale + 0.5).convert("RGB")
        if image.mode in ("I", "F"):
            raise ValueError(
                f"its grey values have 32 bits (mode {image.mode}) and no known scale: "
                "save it with 8 or 16"
            )
        return image.convert("RGB")
