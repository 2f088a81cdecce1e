"""Checkpoints are collected before their storage goes with a node; the head is a STAND-IN."""

import hashlib
import os
import subprocess
from types import SimpleNamespace

import pytest

from gpubed.cluster import checkpoint_backup, lease
from gpubed.core.errors import GpubedError
from gpubed.jobs.runs import checkpoints
from support.disk_head import Disk, cluster, granted, known, sftp, shared

pytestmark = pytest.mark.process

__all__ = ["cluster", "sftp", "shared"]


class Storage:
    """Checkpoints on a head, each newer than the one that was written before it."""

    def __init__(self, cluster, shared, sftp):
        self.there, self.head = shared.runs.parent / "checkpoints", Disk(sftp)
        self.paths, self.of = cluster, granted(cluster, shared.plan)
        self.time = 1_800_000_000
        cluster.state.mkdir(parents=True)
        self.there.mkdir()

    def write(self, name, content="weights", beside=None):
        """Write a file of that content, and beside it its sum, or the sum of `beside`."""
        path = self.there / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if beside is not None:
            digest = hashlib.sha256(beside.encode()).hexdigest()
            path.with_name(f"{path.name}.sha256").write_text(f"{digest}  {path.name}\n")
        self.time += 10
        os.utime(path, (self.time, self.time))
        return path

    def collect(self):
        return checkpoint_backup.collect(self.head, self.of)

    def here(self):
        """Return what has come: content by path, below the folder of this storage."""
        return {
            str(path.relative_to(place)): path.read_text()
            for place in self.paths.checkpoints.glob("*")
            for path in sorted(place.rglob("*"))
            if path.is_file() and not path.name.endswith(".sha256")
        }


@pytest.fixture
def storage(cluster, shared, sftp):
    return Storage(cluster, shared, sftp)


def test_the_newest_whole_one_of_each_folder_comes_with_its_sum(storage):
    storage.write("c1/images-1.pt", "old", beside="old")
    storage.write("c1/images-2.pt", "new", beside="new")
    storage.write("c1/images-3.pt", "damaged", beside="whole")
    for name in ("images-4.part", "draft", ".hidden.pt", "images-0.pt.damaged"):
        storage.write(f"c1/{name}", "no checkpoint")
    storage.write("mine/step-9.pt", "no sum beside it")
    place, said = storage.collect()[0].rsplit("/", 1)[0], storage.collect()
    assert storage.here() == {"c1/images-2.pt": "new", "mine/step-9.pt": "no sum beside it"}
    assert place == f"collected 2 checkpoint(s) into {storage.paths.checkpoints}"
    assert said == ["checkpoints/c1/images-3.pt is damaged: its SHA-256 is another"]
    for name in ("c1", "mine"):
        folder = checkpoints.collected(storage.paths, name)
        sums = [path.name for path in folder.glob("*.sha256")]
        assert len(sums) == 1
        subprocess.run(["sha256sum", "--check", "--quiet", *sums], cwd=folder, check=True)


def test_only_what_is_new_comes_again_and_the_one_before_goes(storage):
    storage.write("c1/images-1.pt", "1", beside="1")
    storage.collect()
    copied = len(storage.head.ran)
    assert storage.collect() == []
    assert len(storage.head.ran) == copied + 1, "it is listed, and not even read"
    storage.write("c1/images-2.pt", "2", beside="2")
    assert storage.collect()[0].startswith("collected 1 checkpoint(s)")
    assert storage.here() == {"c1/images-2.pt": "2"}


def test_what_came_from_another_storage_stays(storage, monkeypatch):
    """A training that begins anew must not replace what the lost one came to."""
    storage.write("c1/images-9.pt", "from before")
    storage.collect()
    head = storage.of.allocation.head.model_copy(update={"id": "another"})
    nodes = (head, *storage.of.allocation.nodes[1:])
    allocation = storage.of.allocation.model_copy(update={"nodes": nodes})
    storage.of = type(storage.of)(storage.paths, storage.of.plan, allocation)
    later = lease.now().replace(year=2099)
    monkeypatch.setattr(lease, "now", lambda: later)
    storage.write("c1/images-9.pt", "begun anew")
    storage.collect()
    found = [path.read_text() for path in sorted(storage.paths.checkpoints.glob("*/c1/*.pt"))]
    assert found == ["from before", "begun anew"]
    assert checkpoints.collected(storage.paths, "c1").parent.name.startswith("2099")


def test_a_folder_may_be_a_checkpoint_and_folders_may_be_in_folders(storage):
    known(storage.paths, "1-x", request={"job": "imagenet"}, values={"checkpoint": "team/c1"})
    for name in ("step-1/model", "step-1/optimizer", "step-2/model", "step-2/deep/optimizer"):
        storage.write(f"hf/{name}", name)
    storage.write("team/c1/images-1.pt", "c1")
    storage.write("team/c2/images-1.pt", "c2")
    storage.collect()
    assert storage.here() == {
        "hf/step-2/deep/optimizer": "step-2/deep/optimizer",
        "hf/step-2/model": "step-2/model",
        "team%2Fc1/images-1.pt": "c1",
        "team/c2/images-1.pt": "c2",
    }
    folder = checkpoints.collected(storage.paths, "hf")
    check = ["sha256sum", "--check", "--quiet", "step-2.sha256"]
    subprocess.run(check, cwd=folder, check=True)


def test_one_that_changes_while_it_is_copied_is_not_taken_for_whole(storage, monkeypatch):
    storage.write("c1/images-1.pt", "1", beside="1")
    last = storage.write("mine/last.pt", "half")
    get = storage.head.get

    def slow(remote, local, own=()):
        told = get(remote, local, own)
        if remote.endswith("last.pt"):
            os.utime(last, (1, 1))
        return told

    monkeypatch.setattr(storage.head, "get", slow)
    with pytest.raises(GpubedError, match=r"checkpoints/mine/last\.pt: it changed while it was"):
        storage.collect()
    assert storage.here() == {"c1/images-1.pt": "1"}


def test_nothing_that_a_node_writes_leads_elsewhere_or_waits_for_ever(storage):
    storage.write("c1/images-1.pt", "1")
    (storage.there / "c1" / "images-2.pt").symlink_to("/etc/passwd")
    (storage.there / "elsewhere").symlink_to("/etc")
    os.mkfifo(storage.there / "c1" / "images-3.pt")
    os.mkfifo(storage.there / "pipe")
    assert len(storage.collect()) == 1
    assert storage.here() == {"c1/images-1.pt": "1"}


def test_what_cannot_be_saved_is_no_success_and_the_rest_comes(storage):
    storage.write("c1/images-1.pt", "1")
    storage.write("c1/x").rename(storage.there / "c1" / os.fsdecode(b"caf\xe9.pt"))
    storage.write("loose.pt")
    storage.write("draft.pt")
    storage.write(".hidden")
    with pytest.raises(GpubedError) as caught:
        storage.collect()
    assert storage.here() == {"c1/images-1.pt": "1"}
    first, *said = caught.value.message.split("; ")
    assert first.startswith(f"2 path(s) in {storage.there} could not be copied to ")
    assert [first.partition(": ")[2], *said] == [
        "checkpoints/loose.pt: it is in no folder: move it into one",
        "checkpoints/c1/caf\N{REPLACEMENT CHARACTER}.pt: a name is not UTF-8: rename it there",
    ]


def test_a_folder_of_a_run_may_be_a_link(storage, tmp_path):
    """Its checkpoints were written through it, and would go with the storage."""
    storage.write("c1/images-1.pt", "1")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "images-2.pt").write_text("2")
    for name, target in (("c2", tmp_path / "scratch"), ("c3", "c1"), ("c4", "gone")):
        known(storage.paths, name, request={"job": "imagenet"}, values={"checkpoint": name})
        (storage.there / name).symlink_to(target)
    known(storage.paths, "c5", request={"job": "imagenet"}, values={"checkpoint": "team/c5"})
    (storage.there / "team").symlink_to(tmp_path / "group")
    (tmp_path / "group" / "c5").mkdir(parents=True)
    (tmp_path / "group" / "c5" / "images-5.pt").write_text("5")
    (storage.there / "nobodys").symlink_to(tmp_path / "scratch")
    storage.collect()
    assert storage.here() == {
        "c1/images-1.pt": "1",
        "c2/images-2.pt": "2",
        "c3/images-1.pt": "1",
        "team%2Fc5/images-5.pt": "5",
    }
    assert storage.collect() == []


def test_one_that_is_damaged_later_keeps_its_whole_copy(storage):
    storage.write("c1/images-1.pt", "1", beside="1")
    storage.write("c1/images-2.pt", "2", beside="2")
    storage.collect()
    storage.write("c1/images-2.pt", "other", beside="2")
    assert "is damaged" in storage.collect()[0]
    assert storage.here() == {"c1/images-2.pt": "2"}


def test_a_heads_word_that_it_is_whole_does_not_make_it_so(storage, monkeypatch):
    storage.write("c1/images-1.pt", "first", beside="first")
    storage.collect()
    storage.write("c1/images-2.pt", "damaged", beside="whole")
    lie = SimpleNamespace(stdout=hashlib.sha256(b"whole").hexdigest() * 2)
    run = storage.head.run
    monkeypatch.setattr(
        storage.head, "run", lambda c, *w, **o: lie if "sha256sum" in c else run(c, *w, **o)
    )
    with pytest.raises(GpubedError, match=r"images-2\.pt: it came with another SHA-256"):
        storage.collect()
    assert storage.here() == {"c1/images-1.pt": "first"}, "the one before stays"
