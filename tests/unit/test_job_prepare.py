"""Job prepare: what it writes of a dataset, and where its indexes say that images are."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from support.prepared import CLASSES, Prepare


@pytest.fixture
def prepare(monkeypatch):
    return Prepare(monkeypatch)


def test_an_index_says_where_each_image_of_its_shard_is(prepare, tmp_path):
    prepare(tmp_path / "small")
    paths = sorted((tmp_path / "small").glob("*.tar"))
    assert len(paths) == 4
    for path in paths:
        index = json.loads(path.with_suffix(".index.json").read_text())
        content = path.read_bytes()
        assert index["bytes"] == len(content)
        with tarfile.open(path) as shard:
            images = [name for name in shard.getnames() if name.endswith(".jpg")]
            assert [row[0] for row in index["images"]] == images
            for name, start, length, label in index["images"]:
                assert content[start : start + length] == shard.extractfile(name).read()
                assert label == int(shard.extractfile(name.replace("jpg", "cls")).read())


def test_a_dataset_tells_of_its_shards_and_sums_all_its_files_up(prepare, tmp_path):
    folder = tmp_path / "small"
    prepare(folder, images=45, shards=4, ranks=2)
    places = ("000-00000", "000-00001", "000-00002", "001-00000", "001-00001")
    assert json.loads((folder / "dataset.json").read_text()) == {
        "images": 45,
        "classes": CLASSES,
        "shards": [f"small-{place}.tar" for place in places],
        "shard_images": [11, 11, 1, 11, 11],
    }
    files = {f"small-{place}.{suffix}" for place in places for suffix in ("tar", "index.json")}
    assert {path.name for path in folder.iterdir()} == {*files, "dataset.json", "SHA256SUMS"}
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {*files, "dataset.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    told = json.loads((tmp_path / "metrics.json").read_text())
    assert (told["images"], told["shards"]) == (45, 5)
    assert told["bytes"] == sum(path.stat().st_size for path in folder.glob("*.tar"))


@pytest.mark.parametrize("broken", ["broken.png", "damaged.png"])
def test_an_image_that_cannot_be_read_is_named_and_in_no_index(prepare, tmp_path, broken):
    samples = [
        (number, prepare.shards.Sample(Path(name), 0))
        for number, name in enumerate(("1.png", broken, "2.png"))
    ]
    made = prepare.shards.pack(samples, tmp_path, "s", size=256, quality=90, shard_bytes=10**6)
    [told] = made.broken
    assert told.startswith(f"{broken}: ")
    [shard] = made.shards
    assert shard.images == made.images == 2
    names = [row[0] for row in json.loads(shard.index.read_text())["images"]]
    assert names == ["000000000.jpg", "000000002.jpg"]


@pytest.mark.parametrize("name", ["../victim/x", "a/b", "/etc", "..", "."])
def test_a_dataset_that_is_no_folder_in_the_datasets_is_refused(
    prepare, tmp_path, monkeypatch, name
):
    (tmp_path / "datasets/raw").mkdir(parents=True)
    monkeypatch.setenv("GPUBED_SHARED", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["main.py", "--source", "raw", "--dataset", name])
    with pytest.raises(SystemExit, match="is no name of a dataset"):
        prepare.main.main()
