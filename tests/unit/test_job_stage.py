"""Staging: copies are right, resumed and proved, and in place only when they are whole."""

import fcntl
import hashlib
import os
import threading
from pathlib import Path

import pytest

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/stage"
MARK = "of this manifest"


@pytest.fixture(scope="module")
def staging():
    return by_path.load(JOB / "staging.py", "stage_staging")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset"
    (folder / "a").mkdir(parents=True)
    (folder / "a/one").write_bytes(b"1" * 100_000)
    (folder / "two").write_bytes(b"2" * 50)
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "scratch/datasets/to"


@pytest.fixture
def draft(target):
    """What an earlier run has left of it."""
    folder = target.with_name(".to.part")
    (folder / "a").mkdir(parents=True)
    return folder


@pytest.fixture
def stage(staging, dataset, target):
    """A function that stages the dataset as it is now; returns what came of each file."""

    def now(manifest=None, mark=MARK):
        manifest = manifest or sums(dataset)
        done = staging.stage(dataset, target, manifest, mark, 1)
        return {file.name: file for file in done}

    return now


def sums(folder):
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".staged")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(found)
    }


def copied(done):
    assert all(file.right for file in done.values())
    return sum(file.bytes for file in done.values())


def is_whole(dataset, target):
    """Whether a dataset is in place, alone, with its mark, and nothing is left beside it."""
    there = {str(path.relative_to(target)) for path in target.rglob("*")}
    return (
        there == {".staged", *(str(path.relative_to(dataset)) for path in dataset.rglob("*"))}
        and sums(target) == sums(dataset)
        and (target / ".staged").read_text() == MARK
        and list(target.parent.iterdir()) == [target]
    )


def test_all_files_arrive(stage, dataset, target):
    assert copied(stage()) == 100_050
    assert is_whole(dataset, target)


def test_a_second_run_copies_and_touches_nothing(stage, dataset, target):
    """Not even the name: a training may be reading it."""
    stage()
    before = [path.stat().st_ctime_ns for path in (target, target.parent)]
    assert copied(stage()) == 0
    assert [path.stat().st_ctime_ns for path in (target, target.parent)] == before


def test_a_run_that_was_stopped_leaves_nothing_in_place_and_the_next_goes_on(
    staging, stage, dataset, target, monkeypatch
):
    """Whatever it is stopped by: a disk that is full, here."""
    copy = staging._append

    def full(source, part):
        if source.name == "two":
            raise OSError(28, "No space left on device")
        return copy(source, part)

    monkeypatch.setattr(staging, "_append", full)
    with pytest.raises(OSError, match="No space"):
        stage()
    assert not target.exists()
    monkeypatch.undo()
    assert copied(stage()) == 50
    assert is_whole(dataset, target)


def test_an_update_moves_what_is_there_and_drops_what_is_no_more(stage, dataset, target):
    """Before it copies: a disk need not have room for both."""
    stage()
    kept = (target / "a/one").stat().st_ino
    (target / "left").symlink_to(dataset)
    (target / "gone/deep").mkdir(parents=True)
    (target / "gone/deep/3").touch()
    (dataset / "two").unlink()
    (dataset / "b").mkdir()
    (dataset / "b/four").write_bytes(b"4" * 10)
    assert copied(stage()) == 10
    assert is_whole(dataset, target)
    assert (target / "a/one").stat().st_ino == kept
    assert (dataset / "a/one").exists(), "what a link leads to stays"


def test_what_a_link_leads_to_is_no_copy(stage, dataset, target, draft):
    """Neither a link in it nor one in its place."""
    (draft / "a").rmdir()
    (draft / "a").symlink_to(dataset / "a")
    (draft / "two").symlink_to(dataset / "two")
    assert copied(stage()) == 100_050
    assert is_whole(dataset, target)
    target.rename(target.parent.with_name("mine"))
    target.symlink_to(target.parent.with_name("mine"))
    assert copied(stage()) == 100_050
    assert is_whole(dataset, target)
    assert sums(target.parent.with_name("mine")) == sums(dataset)


def test_what_differs_from_the_manifest_is_named_and_not_kept(stage, dataset, target):
    stage()
    done = stage({**sums(dataset), "two": "0" * 64})
    assert not done["two"].right
    assert not target.exists()
    assert list(sums(target.with_name(".to.part"))) == ["a/one"]


def test_two_at_once_on_a_node_wait_for_each_other(stage, dataset, target):
    target.parent.mkdir(parents=True)
    held = os.open(target.parent, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    done = []
    both = [threading.Thread(target=lambda: done.append(stage())) for _ in range(2)]
    for one in both:
        one.start()
    both[0].join(0.2)
    assert (done, list(target.parent.iterdir())) == ([], [])
    os.close(held)
    for one in both:
        one.join()
    assert sorted(copied(one) for one in done) == [0, 100_050]
    assert is_whole(dataset, target)
