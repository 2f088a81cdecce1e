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

# From so many shards per rank on, one more or less does not matter: a twentieth of a pass.
MANY_SHARDS = 20
# The mark that job `stage` leaves in a complete dataset: the SHA-256 of its manifest.
MARK, MANIFEST = ".staged", "SHA256SUMS"
# Images of a shard that stay together, as the disk reads neighbours at once; and the number of
# shards whose images are mixed, all of them open.
TOGETHER, MIXED = 16, 16


@dataclass(frozen=True)
class Deal:
    """Which images of an epoch's order a rank takes.

    Images are dealt out in batches to one rank after the other. The images that all ranks have
    taken are thus the first part of the order, and any number of ranks can continue after them.

    Attributes:
        rank: The rank that takes them.
        ranks: Number of ranks.
        batch: Images of a batch.
        after: Number of images of the order that were taken before.
    """

    rank: int
    ranks: int
    batch: int
    after: int = 0

    def places(self) -> Iterator[int]:
        """Places of the rank's images, rising endlessly; the order repeats after its last image."""
        for first in itertools.count(self.after + self.rank * self.batch, self.ranks * self.batch):
            yield from range(first, first + self.batch)


class Source(ABC):
    """Encoded images with their classes.

    Attributes:
        folder: Their folder.
        images: Number of images.
        classes: Names of the classes.
    """

    folder: Path
    images: int
    classes: list[str]

    @abstractmethod
    def share(self, rank: int, ranks: int) -> Iterator[Item]:
        """A rank's share of the images; each is in exactly one."""

    @abstractmethod
    def dealt(self, order: str, deal: Deal) -> Iterator[tuple[int, Item]]:
        """A rank's images of an epoch, each with its place, endlessly.

        Args:
            order: Seed of the epoch's order.
            deal: Which of them the rank takes.
        """


class Shards(Source):
    """Tar files in WebDataset's layout with a `dataset.json`, as job `prepare` writes them."""

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "dataset.json").read_text())
        self.folder, self.images = folder, description["images"]
        self.classes, self._names = description["classes"], description["shards"]
        if self.images < 1:
            raise ValueError("it has no image")
        # Datasets of former versions, and of other programs, have no indexes.
        counts = description.get("shard_images")
        if counts is not None and (len(counts), sum(counts)) != (len(self._names), self.images):
            raise ValueError("shard_images does not fit shards and images")
        self._counts = dict(zip(self._names, counts or (), strict=False))

    def share(self, rank: int, ranks: int) -> Iterator[Item]:
        """See `Source`; with an index, only the share is read."""
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

        Without an index, each rank has its own shards if all get (nearly) the same number of them:
        reading all shards takes longer than training. Then a training only continues at the right
        place if the number of ranks is the same.
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
        """Parts of shards in mixed order: name, first image, and the image after the last."""
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
        """The images at a rank's places; no others are read."""
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
        """Images of shards, repeated if they are fewer than a rank's part of an epoch."""
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
    """A folder of images per class, in the layout of torchvision's ImageFolder."""

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
    """A dataset's folder: on this node's scratch if job `stage` copied all of it, else shared.

    Other content of the scratch, such as an old version of the dataset or a copy without the mark,
    is read only if the shared storage does not have the dataset.

    Raises:
        Unusable: The dataset is in neither.
    """
    staged, shared = _places(name)
    places = [staged, shared] if _is_current(name) else [shared, staged]
    for place in filter(None, places):
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places if place)
    raise Unusable(f"there is no dataset {name}: looked for {looked}")


def passed_over(name: str) -> str:
    """Message that the copy of a dataset on scratch is not used; empty if it is, or without one.

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
    """A dataset's path on this node's scratch, if it has one, and on the shared storage."""
    scratch, shared = os.environ.get("GPUBED_SCRATCH"), os.environ.get("GPUBED_DATASETS", ".")
    return Path(scratch) / "datasets" / name if scratch else None, Path(shared) / name


def _is_current(name: str) -> bool:
    """Whether job `stage` copied the present version of a dataset, or of one that contains it."""
    for part in map(str, (PurePath(name), *PurePath(name).parents)):
        staged, shared = _places(part)
        if staged and (staged / MARK).is_file():
            manifest, mark = shared / MANIFEST, (staged / MARK).read_bytes()
            # Without a manifest, changes of a dataset cannot be noticed.
            return not manifest.exists() or mark == _sha256(manifest).encode()
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mend(name: str) -> str:
    return f"gpubed run CLUSTER stage --set dataset={name}"


def load(folder: Path) -> Source:
    """Opens the dataset in a folder.

    Raises:
        Unusable: It has neither shards nor images.
    """
    try:
        return Shards(folder) if (folder / "dataset.json").exists() else Folder(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{folder} cannot be read as a dataset: {error!r}") from error


def splits(name: str, validation: str | None) -> tuple[Source, Source | None]:
    """The images to train on, and those to validate with, if any.

    Raises:
        Unusable: A dataset is missing, or the two do not have the same classes.
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
    """Number of images and a digest of their description, for ranks to compare what they read.

    The digest is of `dataset.json` and the size of each shard, or of the name and size of each
    image.

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
            # Without `Path`, for speed: there may be more than a million.
            size = os.stat(path).st_size  # noqa: PTH116
            found.update(os.fsencode(f"{path.removeprefix(folder)} {size}\n"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{source.folder} is not whole: {error}"
        raise Unusable(f"{why}; stage it again, or prepare it anew") from error
    digest = found.hexdigest()[:8]
    return f"{source.images} images of {len(source.classes)} classes ({digest})"


def apart(name: str, everyone: Sequence[tuple[str, str]]) -> str:
    """Returns a message about ranks that read other images than most; empty if all read the same.

    Args:
        name: The dataset's name.
        everyone: For each rank, where it reads and the `told` of that.
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
