"""Datasets that job prepare makes; pictures are STAND-INS, which are made within no time.

An image is `image NUMBER` and then dots; its class is the number's rest by 3.
"""

import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import MagicMock

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/prepare"
CLASSES = ["a", "b", "c"]
# Of an image with its class in a shard: two headers, and a block of content for each.
BLOCKS = 4 * 512


class Prepare:
    """The parts of job prepare."""

    def __init__(self, monkeypatch):
        with monkeypatch.context() as patch:
            for name in ("horovod", "horovod.torch"):
                patch.setitem(sys.modules, name, MagicMock())
            self.pictures = by_path.load(JOB / "pictures.py", "prepare_pictures")
            patch.setitem(sys.modules, "pictures", self.pictures)
            self.shards = by_path.load(JOB / "shards.py", "prepare_shards")
            patch.setitem(sys.modules, "shards", self.shards)
            self.main = by_path.load(JOB / "main.py", "prepare_main")
        monkeypatch.setattr(self.shards, "resized", _resized)

    def __call__(self, target, images=40, shards=4, ranks=2):
        """Make a dataset whose shards have as many images each; returns what each rank told."""
        draft = target.with_name(f".{target.name}.part")
        draft.mkdir(parents=True)
        samples = [
            (number, self.shards.Sample(Path(f"{number}.png"), number % 3))
            for number in range(images)
        ]
        told = [
            self.main.told(
                self.shards.pack(
                    samples[rank::ranks],
                    draft,
                    f"{target.name}-{rank:03d}",
                    size=256,
                    quality=90,
                    shard_bytes=images // shards * BLOCKS,
                )
            )
            for rank in range(ranks)
        ]
        self.main.finish(Namespace(out=draft.parent), draft, target, CLASSES, {"": told}, 1.0)
        return told


def _resized(path, _size, _quality):
    if path.stem.startswith("broken"):
        raise OSError("cannot identify image file")
    if path.stem.startswith("damaged"):  # as Pillow has it of a chunk
        raise SyntaxError("broken PNG file (chunk b'I\\x00AT')")
    return f"image {path.stem} ".encode().ljust(60 + int(path.stem), b".")
