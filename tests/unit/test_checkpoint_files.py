"""What is in a folder of checkpoints; a head's shell is a STAND-IN: it runs here."""

import os
import shlex
import subprocess
from types import SimpleNamespace

import pytest

from gpubed.core.errors import UsageError
from gpubed.jobs import checkpoint_files
from gpubed.jobs.checkpoint_files import Files
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandFailed, CommandResult, Unreachable
from support.samples import sample_allocation, sample_plan
from support.sessions import Session


@pytest.fixture
def shared(tmp_path):
    """The cluster's shared storage."""
    return tmp_path / "shared storage"


@pytest.fixture
def cluster(monkeypatch, shared):
    class Here(Session):
        def run(self, command, *words, timeout):
            assert timeout < 60
            line = command % tuple(map(shlex.quote, words))
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
            result = CommandResult(done.stdout, done.stderr, done.returncode, 0.0)
            if done.returncode:
                raise CommandFailed("node-0", line, result)
            return result

    monkeypatch.setattr(checkpoint_files, "SSH", Here)
    plan = sample_plan()
    monkeypatch.setattr(checkpoint_files, "folder", lambda _, name: f"{shared}/checkpoints/{name}")
    return Cluster(SimpleNamespace(name="lab"), plan, sample_allocation(plan))


@pytest.fixture
def folder(shared):
    made = shared / "checkpoints" / "mine"
    made.mkdir(parents=True)
    return made


def names(files):
    return sorted(name for name, _ in files)


@pytest.mark.process
def test_what_a_run_could_go_on_from_is_told_from_what_is_beside_it(cluster, folder):
    finished = ["step 1\n.pt", "sub/shard-0", "\N{SNOWMAN}"]
    beside = ["draft", ".hidden", "a.part", "b.tmp", "step 1\n.pt.sha256", "c.pt.damaged1"]
    for name in (*finished, *beside):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    found = checkpoint_files.look(cluster, "mine")
    assert (names(found.finished), names(found.beside)) == (sorted(finished), sorted(beside))


@pytest.mark.process
def test_a_file_that_was_written_again_is_another(cluster, folder):
    (folder / "last.pt").write_text("1")
    os.utime(folder / "last.pt", (0, 100))
    before = checkpoint_files.look(cluster, "mine")
    assert not before.new(before)
    os.utime(folder / "last.pt", (0, 200))
    assert names(checkpoint_files.look(cluster, "mine").new(before)) == ["last.pt"]


@pytest.mark.process
def test_no_folder_has_no_files_and_where_nobody_can_look_nobody_can_tell(
    cluster, folder, monkeypatch
):
    assert checkpoint_files.look(cluster, "other") == Files()

    def refuse(*_, **__):
        raise Unreachable("node-0 does not answer")

    monkeypatch.setattr(checkpoint_files.SSH, "run", refuse)
    assert checkpoint_files.look(cluster, "mine") is None


def test_what_else_a_login_prints_is_no_file():
    listed = "Welcome!\nfinished 1 2.5 step.pt\0finished 1 2.5 last.pt\0beside 1 2.5 cut o"
    assert names(Files.of(listed).finished) == ["last.pt"]


def files(*finished, beside=()):
    return Files(*(frozenset((name, "1 1") for name in kind) for kind in (finished, beside)))


@pytest.mark.parametrize(
    ("start", "before", "now", "more"),
    [
        (files("a"), files("a"), files("a"), False),
        (files("a"), files("a"), files(), False),
        (files("a"), files("a"), files("a", "b"), False),
        (files("a"), files("a", "b"), files("a", "b"), True),
        (files("a"), files("a", "b"), files("b", "c"), False),
        (files("a"), files("a", "b"), files("b"), True),
        (files("a"), files("a"), files("a", "b", beside=["b.sha256"]), True),
        (files("a"), files("a"), files("a", beside=["b.sha256", "b.part"]), False),
        # The checksum of a file that is written over is that of the one before.
        (files("a", beside=["b.sha256"]), files("a"), files("b", beside=["b.sha256"]), False),
    ],
)
def test_more_is_there_once_it_is_whole(start, before, now, more):
    assert now.have_more(start, before) is more


@pytest.mark.process
def test_going_on_from_nothing_is_refused(cluster, folder):
    def require(*names):
        checkpoint_files.require_some(cluster, names, "begin anew")

    require()
    (folder / "draft").write_text("half")
    with pytest.raises(
        UsageError, match=r"no checkpoint to resume from in .*/mine, .*/other\n"
    ) as no:
        require("mine", "other")
    assert no.value.hint == "begin anew"
    (folder / "step-1.pt").write_text("whole")
    require("mine", "other")
