"""Job imagenet reads what job prepare made by its indexes: each rank its own images alone."""

import itertools
import json

import pytest

from support import prepared


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset of 40 images in 4 shards, with an index for each."""
    prepared.Prepare(monkeypatch)(tmp_path / "small")
    return tmp_path / "small"


def shown(items):
    """The numbers of images, in their order; each has the class that it is of."""
    found = [(int(read().split()[1]), label) for _, read, label in items]
    assert all(label == number % 3 for number, label in found)
    return [number for number, _ in found]


def index(shard):
    return shard.with_suffix(".index.json")


def numbers(shard):
    return {
        int(row[0].removesuffix(".jpg")) for row in json.loads(index(shard).read_text())["images"]
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 40])
def test_the_shares_of_any_number_of_ranks_are_the_dataset(job, dataset, ranks):
    """Each image once: in validation, none may count twice, and none be left out."""
    source = job("data").load(dataset)
    parts = [shown(source.share(rank, ranks)) for rank in range(ranks)]
    assert sorted(itertools.chain(*parts)) == list(range(40))
    assert {len(part) for part in parts} <= {40 // ranks, -(-40 // ranks)}


@pytest.mark.parametrize("ranks", [3, 4, 7, 16])
def test_a_rank_needs_no_shard_but_those_of_its_own_share(job, dataset, tmp_path, ranks):
    """However many ranks there are: else each of them would go through the whole dataset."""
    source = job("data").load(dataset)
    everything = shown(source.share(0, 1))
    others = tmp_path / "others"
    others.mkdir()
    for rank in range(ranks):
        wanted = everything[rank * 40 // ranks : (rank + 1) * 40 // ranks]
        for shard in dataset.glob("*.tar"):
            if not numbers(shard) & {*wanted}:
                index(shard).rename(others / index(shard).name)
                shard.rename(others / shard.name)
        assert shown(source.share(rank, ranks)) == wanted
        for path in others.iterdir():
            path.rename(dataset / path.name)


FIRST = "small-000-00000.tar"


def other_images(folder):
    """Let a shard be another one of the same length, as of another order."""
    shard, other = folder / FIRST, folder / "small-001-00000.tar"
    shard.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: index(f / FIRST).unlink(), "index .*00000.index.json is broken: FileNotFound"),
        (
            lambda f: index(f / FIRST).write_text('{"bytes": 1, "images": [[1]]}'),
            "index .*00000.index.json is broken: ValueError",
        ),
        (
            lambda f: (f / FIRST).write_bytes((f / FIRST).read_bytes()[:3000]),
            "the index is of 30720 bytes, and the shard has 3000",
        ),
        (other_images, "00000.jpg is not at byte 512"),
        (lambda f: (f / FIRST).unlink(), f"shard .*{FIRST} is broken: FileNotFoundError"),
    ],
)
def test_an_index_that_is_broken_or_of_another_shard_is_told(job, dataset, damage, said):
    data = job("data")
    damage(dataset)
    with pytest.raises(data.Unusable, match=f"{said}.*; stage it again, or prepare it anew"):
        shown(data.load(dataset).share(0, 2))
