"""Images of job imagenet: datasets, whole and broken, and the share of each rank.

Shards here have no index, as those of other programs; test_job_imagenet_index.py has those with.
"""

import io
import itertools
import json
import tarfile

import pytest


def shard(path, numbers):
    """A shard in WebDataset's layout: the number of an image stands for what it shows."""
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            for suffix, content in (("jpg", f"image {number}"), ("cls", str(number % 3))):
                entry = tarfile.TarInfo(f"{number:09d}.{suffix}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset of 40 images in 4 shards."""
    monkeypatch.setenv("GPUBED_DATASETS", str(tmp_path))
    monkeypatch.delenv("GPUBED_SCRATCH", raising=False)
    folder = tmp_path / "small"
    folder.mkdir()
    names = [f"small-000-{number:05d}.tar" for number in range(4)]
    for number, name in enumerate(names):
        shard(folder / name, range(10 * number, 10 * number + 10))
    description = {"images": 40, "classes": ["a", "b", "c"], "shards": names}
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def shown(items):
    return [(int(read().split()[1]), label) for _, read, label in items]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_shares_of_all_ranks_are_the_dataset(job, dataset, ranks):
    """Fewer shards than ranks: each rank takes some images of every shard."""
    source = job("data").load(dataset)
    parts = [shown(source.share(rank, ranks)) for rank in range(ranks)]
    assert sorted(itertools.chain(*parts)) == [(number, number % 3) for number in range(40)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_folder_per_class_is_a_dataset(job, tmp_path):
    for name in ("b/2.png", "a/1.JPG", "a/deep/3.jpeg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = job("data").load(tmp_path)
    assert (source.classes, source.images) == (["a", "b"], 3)
    items = source.share(0, 1)
    assert [(read().decode(), label) for _, read, label in items] == [
        *(("a/1.JPG", 0), ("a/deep/3.jpeg", 0), ("b/2.png", 1))
    ]


def test_train_and_val_belong_together(job, dataset, tmp_path):
    data = job("data")
    assert data.splits("small", None)[1] is None
    assert data.splits("small", "small")[1].images == 40
    for name in ("both/train/a/1.png", "both/val/a/2.png", "both/val/a/3.png", "raw/z/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, held_out = data.splits("both", None)
    assert (train.images, held_out.images) == (1, 2)
    with pytest.raises(data.Unusable, match="do not have the same classes"):
        data.splits("small", "raw")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:3000]),
        lambda path: path.write_bytes(b"no tar file" * 1000),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "no tar", "missing"],
)
def test_a_broken_shard_is_named(job, dataset, damage):
    data = job("data")
    damage(dataset / "small-000-00002.tar")
    with pytest.raises(data.Unusable, match=r"shard .*small-000-00002.tar is broken: .*stage it"):
        shown(data.load(dataset).share(0, 1))


def test_a_dataset_that_is_none_is_named(job, dataset, tmp_path):
    data = job("data")
    with pytest.raises(data.Unusable, match=f"no dataset other: looked for {tmp_path}/other"):
        data.splits("other", None)
    (dataset / "dataset.json").write_text("{}")
    with pytest.raises(data.Unusable, match="small cannot be read as a dataset"):
        data.splits("small", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.Unusable, match="no image in a folder per class"):
        data.splits("empty", None)
