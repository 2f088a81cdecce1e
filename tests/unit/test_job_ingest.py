"""A dataset that job ingest fills is whole after a kill at any moment, and trains job imagenet."""

import hashlib
from pathlib import Path

import pytest

from support import by_path

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="module")
def begin():
    return by_path.load(JOBS / "ingest/dataset.py", "ingest_dataset").Dataset


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_between_two_writes_leaves_the_last_whole_state(
    tmp_path, monkeypatch, begin, writes
):
    begin(tmp_path / "made", "events").add(1, b"one", "bin", "a")
    dataset = begin(tmp_path / "made", "events")
    dataset.add(1, b"one", "bin", "a")
    dataset.commit(1)
    dataset.add(2, b"two", "bin", "b")
    with monkeypatch.context() as patch:
        renames = []

        def rename(path, target):
            if len(renames) == writes:
                raise KeyboardInterrupt
            renames.append(target)
            path.replace(target)

        patch.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            dataset.commit(2)
    again = begin(tmp_path / "made", "events")
    # The third is dataset.json.
    assert again.last == (2 if writes > 2 else 1)
    if again.last == 1:
        again.add(2, b"two", "bin", "b")
        again.commit(2)
    files = {path.name for path in (tmp_path / "made").iterdir()}
    sums = dict(
        reversed(line.split("  "))
        for line in (tmp_path / "made/SHA256SUMS").read_text().splitlines()
    )
    assert files == {*sums, "SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / "made" / name).read_bytes()).hexdigest() == digest
    assert again.told["shard_images"] == [1, 1]


def test_job_imagenet_reads_it(tmp_path, job, begin):
    dataset = begin(tmp_path / "made", "events")
    for number in range(10):
        dataset.add(number + 1, b"image %d" % number, "jpg", "ab"[number % 2])
        if number % 4 == 3:
            dataset.commit(number + 1)
    dataset.commit(10)
    source = job("data").load(tmp_path / "made")
    shown = [(read(), label) for _, read, label in source.share(0, 1)]
    assert shown == [(b"image %d" % number, number % 2) for number in range(10)]


def test_a_folder_of_something_else_is_refused(tmp_path, begin):
    begin(tmp_path / "made", "events").commit(3)
    with pytest.raises(ValueError, match="was not filled from stream others"):
        begin(tmp_path / "made", "others")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").touch()
    with pytest.raises(ValueError, match=r"has no dataset\.json"):
        begin(tmp_path / "photos", "events")
