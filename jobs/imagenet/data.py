"""Images to train on: the shards of job `prepare`, or a folder of images per class."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePath

import pictures
import shards
from shards import Item, Unusable

# Shards per rank from which on one more or less is no matter: a twentieth of a pass.
MANY_SHARDS = 20
# What job `stage` leaves in a dataset that is whole: the SHA-256 of the manifest that it had.
MARK, MANIFEST = ".staged", "SHA256SUMS"
# Images of a shard that stay together, since the disk gives neighbours at once; and shards among
# whose images they are mixed, which are open meanwhile.
TOGETHER, MIXED = 16, 16


@dataclass(frozen=True)
class Deal:
    """Which images of an epoch's order a rank takes.

    They are dealt out in batches, to one rank after the other: what all of them have had is the
    first part of the order, so that any number of ranks can go on behind it.

    Attributes:
        rank: Who takes them.
        ranks: Of how many.
        batch: Images of a batch.
        after: Images of the order that have been had.
    """

    rank: int
    ranks: int
    batch: int
    after: int = 0

    def places(self) -> Iterator[int]:
        """The places of its images, rising without an end; an order begins anew behind its last."""
        for first in itertools.count(self.after + self.rank * self.batch, self.ranks * self.batch):
            yield from range(first, first + self.batch)


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
    def share(self, rank: int, ranks: int) -> Iterator[Item]:
        """A rank's share of the images; each is in exactly one."""

    @abstractmethod
    def dealt(self, order: str, deal: Deal) -> Iterator[tuple[int, Item]]:
        """A rank's images of an epoch, each with its place, without an end.

        Args:
            order: Seed of the epoch's order.
            deal: Which of them.
        """


class Shards(Source):
    """Tar files in WebDataset's layout with a `dataset.json`, as job `prepare` writes them."""

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "dataset.json").read_text())
        self.folder, self.images = folder, description["images"]
        self.classes, self._names = description["classes"], description["shards"]
        if self.images < 1:
            raise ValueError("it has no image")
        # Those of former versions, and of other programs, have no indexes.
        counts = description.get("shard_images")
        if counts is not None and (len(counts), sum(counts)) != (len(self._names), self.images):
            raise ValueError("shard_images does not fit shards and images")
        self._counts = dict(zip(self._names, counts or (), strict=False))

    def share(self, rank: int, ranks: int) -> Iterator[Item]:
        """See `Source`; of shards with an index, it reads nothing else."""
        if not self._counts:
            yield from itertools.islice(self._walk(self._names), rank, None, ranks)
            return
        start, end = (place * self.images // ranks for place in (rank, rank + 1))
        passed = 0
        for name, count in self._counts.items():
            first, last = max(start - passed, 0), min(end - passed, count)
            if first < last:
                with closing(shards.Shard(self.folder / name, count)) as shard:
                    yield from map(shard.image, range(first, last))
            passed += count

    def dealt(self, order: str, deal: Deal) -> Iterator[tuple[int, Item]]:
        """See `Source`.

        Without an index, a rank has shards of its own where all get as many, or nearly: to go
        through all of them takes longer than to train. Then only the same number of ranks goes on
        where it was.
        """
        names, chance = list(self._names), random.Random(order)  # noqa: S311  # an order, no secret
        chance.shuffle(names)
        if self._counts:
            return self._picked(self._mixed(names, chance), deal)
        if len(names) % deal.ranks == 0 or len(names) >= MANY_SHARDS * deal.ranks:
            mine = self._again_and_again(names[deal.rank :: deal.ranks])
            places = itertools.count(deal.rank, deal.ranks)
            return itertools.islice(zip(places, mine, strict=False), deal.after // deal.ranks, None)
        return self._among_all(names, deal)

    def _mixed(self, names: Sequence[str], chance: random.Random) -> list[tuple[str, int, int]]:
        """Parts of shards: which one, the first of its images, and the one after them."""
        found = []
        for group in (names[first : first + MIXED] for first in range(0, len(names), MIXED)):
            parts = [
                (name, first, min(first + TOGETHER, self._counts[name]))
                for name in group
                for first in range(0, self._counts[name], TOGETHER)
            ]
            chance.shuffle(parts)
            found += parts
        return found

    def _picked(
        self, parts: Sequence[tuple[str, int, int]], deal: Deal
    ) -> Iterator[tuple[int, Item]]:
        """The images at a rank's places; nothing else is read."""
        ends = list(itertools.accumulate(last - first for _, first, last in parts))
        with shards.Opened(self.folder, self._counts, MIXED) as opened:
            for place in deal.places():
                part = bisect.bisect_right(ends, place % self.images)
                name, _, last = parts[part]
                yield place, opened[name].image(last - ends[part] + place % self.images)

    def _among_all(self, names: Sequence[str], deal: Deal) -> Iterator[tuple[int, Item]]:
        places = deal.places()
        wanted = next(places)
        for place, item in enumerate(self._again_and_again(names)):
            if place == wanted:
                yield place, item
                wanted = next(places)

    def _again_and_again(self, names: Sequence[str]) -> Iterator[Item]:
        """Shards that hold fewer images than a rank's part of an epoch begin again."""
        while True:
            item = None
            for item in self._walk(names):
                yield item
            if item is None:
                raise Unusable(f"{self.folder} has no image in {', '.join(names)}")

    def _walk(self, names: Iterable[str]) -> Iterator[Item]:
        for name in names:
            yield from shards.all_of(self.folder / name)


class Folder(Source):
    """A folder of images per class, as torchvision's ImageFolder takes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.classes, self._files = pictures.find(folder)
        except ValueError as error:
            raise Unusable(f"{error}, and no dataset.json") from None
        self.images = len(self._files)

    def share(self, rank: int, ranks: int) -> Iterator[Item]:
        """See `Source`."""
        return map(_file, self._files[rank::ranks])

    def dealt(self, order: str, deal: Deal) -> Iterator[tuple[int, Item]]:
        """See `Source`."""
        files = list(self._files)
        random.Random(order).shuffle(files)  # noqa: S311  # an order, not a secret
        return ((place, _file(files[place % self.images])) for place in deal.places())


def _file(found: pictures.Sample) -> Item:
    path, label = found
    return str(path), path.read_bytes, label


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
    parts = pictures.parts(folder)
    train = load(folder / pictures.TRAIN if parts else folder)
    own = next((folder / part for part in parts if part in pictures.VALIDATION), None)
    held_out_folder = find(validation) if validation else own
    if held_out_folder is None:
        return train, None
    held_out = load(held_out_folder)
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
            paths = [path for path, _, _ in source.share(0, 1)]
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
