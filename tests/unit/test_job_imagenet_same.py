"""All ranks of job imagenet read the same dataset, or none goes on.

Ranks are STAND-INS, one after the other: what each tells the others is collected first.
"""

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import by_path
from support.imagenet import CPU

STAGE = Path(__file__).parents[2] / "jobs/stage/staging.py"
MEND = "gpubed run CLUSTER stage --set dataset="


class Gathered(Exception):
    """What a rank tells the others."""


class Nodes:
    """Nodes with a rank and a scratch each, and the storage that they share."""

    def __init__(self, job, monkeypatch, root):
        self.feed, self.data, self._patch, self.root = job("feed"), job("data"), monkeypatch, root
        self.names = ["node-0", "node-1", "node-2"]
        monkeypatch.setattr(self.feed, "Pipeline", lambda source, *_: source)
        monkeypatch.setenv("GPUBED_DATASETS", str(root / "shared"))
        self._staging = by_path.load(STAGE, "stage_staging_of_imagenet")

    def images(self, place, name, count=4, content="image"):
        """Make a dataset of that many images in each of two classes."""
        folder = self.root / place / name
        for number in range(count):
            for label in "ab":
                path = folder / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
        return folder

    def scratch(self, node, name):
        """Return where job stage puts a dataset."""
        return self.root / node / "datasets" / name

    def sums(self, name):
        """Write the manifest of a shared dataset; return its mark."""
        folder = self.root / "shared" / name
        digests = {
            each: self._staging.digest(folder / each) for each in self._staging.files(folder)
        }
        (folder / "SHA256SUMS").write_text(self._staging.write_manifest(digests))
        return digests, self._staging.digest(folder / "SHA256SUMS")

    def stage(self, name, *nodes):
        """Stage a dataset as job stage does."""
        digests, mark = self.sums(name)
        for node in nodes or self.names:
            source, target = self.root / "shared" / name, self.scratch(node, name)
            self._staging.stage(source, target, digests, mark, 1)

    def rank(self, rank, gather, dataset, validation=None):
        node = os.uname_result(("Linux", self.names[rank], "6", "#1", "x86_64"))
        self._patch.setattr(self.feed.os, "uname", lambda: node)
        self._patch.setenv("GPUBED_SCRATCH", str(self.root / self.names[rank]))
        given = SimpleNamespace(
            dataset=dataset, validation=validation, batch_size=1, loader_threads=1
        )
        size = len(self.names)
        averaging = SimpleNamespace(
            rank=rank, size=size, replica=rank, replicas=size, local_rank=0, gather=gather
        )
        return self.feed.Feed(given, averaging, 32, CPU)

    def start(self, *given):
        """Start all ranks; returns their feeds, or what ended them."""

        def tell(value):
            raise Gathered(value)

        told, ended = [], []
        for rank in range(len(self.names)):
            with pytest.raises(Gathered) as said:
                self.rank(rank, tell, *given)
            told.append(said.value.args[0])
        for rank in range(len(self.names)):
            try:
                ended.append(self.rank(rank, lambda _: told, *given))
            except self.data.Unusable as error:
                ended.append(str(error))
        return ended

    def refused(self, *given):
        """Start all ranks; return the sentence that ends each of them."""
        [sentence] = set(self.start(*given))
        return sentence


@pytest.fixture
def nodes(job, monkeypatch, tmp_path):
    """Three nodes, and a dataset of 8 images on their shared storage."""
    found = Nodes(job, monkeypatch, tmp_path)
    found.images("shared", "small")
    return found


def test_ranks_that_read_the_same_go_on_wherever_each_reads_it(nodes, capsys):
    nodes.stage("small", "node-1")
    feeds = nodes.start("small")
    assert [(feed.images, feed.classes) for feed in feeds] == [(8, 2)] * 3
    assert feeds[1]._pipeline.folder == nodes.scratch("node-1", "small")
    assert feeds[2]._pipeline.folder == nodes.root / "shared/small"
    assert capsys.readouterr().out == ""


def lose(folder):
    (folder / "b/3.png").unlink()


def add_class(folder):
    (folder / "c").mkdir()
    (folder / "c/0.png").touch()


def rename(folder):
    (folder / "b/3.png").rename(folder / "b/4.png")


def replace(folder):
    (folder / "b/3.png").write_text("another image")


def rename_class(folder):
    (folder / "b").rename(folder / "c")


@pytest.mark.parametrize(
    ("change", "images", "classes"),
    [(lose, 7, 2), (add_class, 9, 3), (rename, 8, 2), (replace, 8, 2), (rename_class, 8, 2)],
)
def test_a_node_that_reads_something_else_ends_all_ranks_by_name(nodes, change, images, classes):
    nodes.stage("small")
    place = nodes.scratch("node-1", "small")
    change(place)
    said = nodes.refused("small")
    digest = r"\([0-9a-f]{8}\)"
    assert re.fullmatch(
        f"not all ranks read the same dataset: {images} images of {classes} classes {digest} in "
        f"node-1:{place}, and 8 images of 2 classes {digest} elsewhere; {MEND}small",
        said,
    )


def test_what_one_rank_cannot_read_ends_all(nodes):
    nodes.stage("small")
    (nodes.scratch("node-1", "small") / "dataset.json").write_text("{")
    said = nodes.refused("small")
    assert said.startswith(f"node-1: {nodes.scratch('node-1', 'small')} cannot be read")


@pytest.fixture
def find(nodes, monkeypatch):
    """A function that says where node-1 finds a dataset."""

    def on_node_1(name="small"):
        monkeypatch.setenv("GPUBED_SCRATCH", str(nodes.root / "node-1"))
        return nodes.data.find(name)

    return on_node_1


def test_what_is_staged_is_read_from_the_scratch(nodes, find):
    assert find() == nodes.root / "shared/small"
    nodes.stage("small")
    assert find() == nodes.scratch("node-1", "small")
    # A dataset without a manifest does not say that it has changed; ranks compare what they read.
    (nodes.root / "shared/small/SHA256SUMS").unlink()
    assert find() == nodes.scratch("node-1", "small")
    shutil.rmtree(nodes.root / "shared/small")
    assert find() == nodes.scratch("node-1", "small")
