"""Images to train on: the shards of job `prepare`, or a folder of images per class."""

from __future__ import annotations

import hashlib
import json
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import shards
from shards import Item, Unusable

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
# Shards per rank from which on one more or less is no matter: a twentieth of a pass.
MANY_SHARDS = 20
# What job `stage` leaves in a dataset that is whole: the SHA-256 of the manifest that it had.
MARK, MANIFEST = ".staged", "SHA256SUMS"


class Source(ABC):
    """Encoded images with their classes.

    Attributes:
        folder: Where they are.
        images: How many there are.
        classes: Their classes' names.
    """

    folder: Path
    images: int
    classes: list[str]

    @abstractmethod
    def share(self, order: str | None, rank: int, ranks: int) -> Iterator[Item]:
        """A rank's images of one pass.

        Args:
            order: Seed of their order; None takes each image of the dataset exactly once,
                which the seeds of training need not.
            rank: Whose share.
            ranks: Of how many.
        """


class Shards(Source):
    """Tar files in WebDataset's layout with a `dataset.json`, as job `prepare` writes them."""

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "dataset.json").read_text())
        self.folder, self.images = folder, description["images"]
        self.classes, self._names = description["classes"], description["shards"]
        # Those of former versions, and of other programs, have no indexes.
        counts = description.get("shard_images")
        if counts is not None and (len(counts), sum(counts)) != (len(self._names), self.images):
            raise ValueError("shard_images does not fit shards and images")
        self._counts = dict(zip(self._names, counts or (), strict=False))

    def share(self, order: str | None, rank: int, ranks: int) -> Iterator[Item]:
        """See `Source`; shards with an index are read where a rank's images are, and only there."""
        names = list(self._names)
        if order is not None:
            random.Random(order).shuffle(names)  # noqa: S311  # an order, not a secret
        if self._counts:
            return self._run(names, rank, ranks)
        return self._walk(names, rank, ranks, each=order is None)

    def _run(self, names: Sequence[str], rank: int, ranks: int) -> Iterator[Item]:
        """A run of the images, as long as any other rank's, or one shorter or longer."""
        start, end = (place * self.images // ranks for place in (rank, rank + 1))
        passed = 0
        for name in names:
            count = self._counts[name]
            first, last = max(start - passed, 0), min(end - passed, count)
            if first < last:
                yield from shards.some_of(self.folder / name, count, first, last)
            passed += count

    def _walk(self, names: Sequence[str], rank: int, ranks: int, *, each: bool) -> Iterator[Item]:
        """Without an index: shards of its own where all ranks get as many, or nearly.

        Args:
            each: Whether each image must be there exactly once.
        """
        even = len(names) % ranks == 0 or len(names) >= MANY_SHARDS * ranks
        whole = even and not each
        mine = names[rank::ranks] if whole else names
        items = (item for name in mine for item in shards.all_of(self.folder / name))
        for number, item in enumerate(items):
            if whole or number % ranks == rank:
                yield item


class Folder(Source):
    """A folder of images per class, as torchvision's ImageFolder takes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self._files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        self.images = len(self._files)
        if not self.images:
            raise Unusable(f"{folder} has no dataset.json and no image in a folder per class")

    def share(self, order: str | None, rank: int, ranks: int) -> Iterator[Item]:
        """See `Source`."""
        files = list(self._files)
        if order is not None:
            random.Random(order).shuffle(files)  # noqa: S311  # an order, not a secret
        for path, label in files[rank::ranks]:
            yield str(path), path.read_bytes, label


def find(name: str) -> Path:
    """A dataset's folder: on this node's scratch where job `stage` put all of it, else shared.

    What else is on the scratch, be it of a dataset that has changed since or without the mark that
    it is whole, is read only where the shared storage has nothing.

    Raises:
        Unusable: It is in neither.
    """
    staged, shared = _places(name)
    places = [staged, shared] if _is_current(name) else [shared, staged]
    for place in filter(None, places):
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places if place)
    raise Unusable(f"there is no dataset {name}: looked for {looked}")


def passed_over(name: str) -> str:
    """Says that this node's scratch has something of a dataset that is not read; empty if not.

    Raises:
        Unusable: There is no such dataset.
    """
    staged, shared = _places(name)
    if staged is None or not staged.is_dir() or find(name) == staged:
        return ""
    return (
        f"{staged} is not the whole of {shared} as it is now, which is read instead; {_mend(name)}"
    )


def _places(name: str) -> tuple[Path | None, Path]:
    """Where a dataset would be on this node's scratch, if it has one, and on the shared storage."""
    scratch, shared = os.environ.get("GPUBED_SCRATCH"), os.environ.get("GPUBED_DATASETS", ".")
    return Path(scratch) / "datasets" / name if scratch else None, Path(shared) / name


def _is_current(name: str) -> bool:
    """Whether job `stage` put a dataset, or one that it is a part of, here as it is now."""
    for part in map(str, (PurePath(name), *PurePath(name).parents)):
        staged, shared = _places(part)
        if staged and (staged / MARK).is_file():
            manifest, mark = shared / MANIFEST, (staged / MARK).read_bytes()
            # Without a manifest, a dataset does not say that it has changed.
            return not manifest.exists() or mark == _sha256(manifest).encode()
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mend(name: str) -> str:
    return f"gpubed run CLUSTER stage --set dataset={name}"


def load(folder: Path) -> Source:
    """Reads what a dataset's folder holds.

    Raises:
        Unusable: Neither shards nor images.
    """
    try:
        return Shards(folder) if (folder / "dataset.json").exists() else Folder(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{folder} cannot be read as a dataset: {error!r}") from error


def splits(name: str, validation: str | None) -> tuple[Source, Source | None]:
    """The images to train on, and those to validate with if there are any.

    Raises:
        Unusable: One is missing, or they do not have the same classes.
    """
    folder = find(name)
    has_parts = (folder / "train").is_dir() and (folder / "val").is_dir()
    train = load(folder / "train" if has_parts else folder)
    if validation is None and not has_parts:
        return train, None
    held_out = load(find(validation) if validation else folder / "val")
    if held_out.classes != train.classes:
        raise Unusable(f"{held_out.folder} and {train.folder} do not have the same classes")
    return train, held_out


def told(source: Source | None) -> str:
    """What ranks compare of the images they read: how many, and a digest of what describes them.

    That is `dataset.json` and the size of each shard, or the name and the size of each image.

    Raises:
        Unusable: Some of it cannot be read.
    """
    if source is None:
        return "no images"
    found = hashlib.sha256(json.dumps(source.classes).encode())
    folder = f"{source.folder}/"
    try:
        if isinstance(source, Shards):
            description = (source.folder / "dataset.json").read_bytes()
            found.update(description)
            paths = [f"{folder}{name}" for name in json.loads(description)["shards"]]
        else:
            paths = [path for path, _, _ in source.share(None, 0, 1)]
        for path in paths:
            # Not by way of `Path`: there may be more than a million.
            size = os.stat(path).st_size  # noqa: PTH116
            found.update(os.fsencode(f"{path.removeprefix(folder)} {size}\n"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{source.folder} is not whole: {error}"
        raise Unusable(f"{why}; stage it again, or prepare it anew") from error
    digest = found.hexdigest()[:8]
    return f"{source.images} images of {len(source.classes)} classes ({digest})"


def apart(name: str, everyone: Sequence[tuple[str, str]]) -> str:
    """Says where other images are read than by most ranks; empty where all read the same.

    Args:
        name: The dataset's.
        everyone: For each rank, where it reads and what it has `told` of that.
    """
    (usual, _), *others = Counter(said for _, said in everyone).most_common()
    if not others:
        return ""
    found = [
        f"{other} in {', '.join(sorted({where for where, said in everyone if said == other}))}"
        for other, _ in others
    ]
    return (
        f"not all ranks read the same dataset: {', '.join(found)}, and {usual} elsewhere; "
        f"{_mend(name)}"
    )
