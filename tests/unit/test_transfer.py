"""Files to and from shared storage: rsync is the real one, and `ssh` runs its words here."""

import json
import os
import socket
import subprocess

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import secret
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes import transfer
from gpubed.nodes.ssh import CommandResult
from support.samples import granted_cluster
from support.sessions import Session

pytestmark = pytest.mark.process

NAMES = ("plain", "two words", "new\nline", "-rf", "ünï/cöde", "a/b/deep", "it's $HOME", "*")


class Head(Session):
    """Runs commands of the head on this machine."""

    def run(self, script, *args, **_):
        words = transfer.shlex.quote
        line = script % tuple(words(str(arg)) for arg in args)
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        return CommandResult(done.stdout, done.stderr, done.returncode, 0.0)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The shared storage of a cluster `lab`."""
    shared = tmp_path / "shared"
    (shared / "datasets").mkdir(parents=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"ssh": 'shift 3; exec sh -c "$*"', "mountpoint": ":"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path / 'a "pro" ject'))
    paths = granted_cluster(tmp_path / 'a "pro" ject')
    spec = f"storage: {{shared: {{path: {shared}}}}}\n"
    paths.spec.write_text(paths.spec.read_text() + spec)
    monkeypatch.setattr(transfer, "SSH", Head)
    monkeypatch.setattr(secret, "require_key", lambda _: None)
    return shared


@pytest.fixture
def mine(tmp_path):
    """A folder of files with odd names."""
    folder = tmp_path / "mine" / "flowers"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "empty").mkdir()
    (folder / "latest").symlink_to("a/b")
    return folder


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


def copied(*words):
    done = call(*words, "--json")
    [one] = json.loads(done.stdout)["copied"]
    return one


def tree(folder):
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def lists(monkeypatch, tmp_path, *entries):
    """Let the node list these entries: kind, size, name, and a link's target."""
    said = "".join(f"{kind} {size} {name}\0{to}\0" for kind, size, name, to in entries)
    (tmp_path / "said").write_text(said)
    (tmp_path / "programs" / "find").write_text(f"#!/bin/sh\nexec cat {tmp_path}/said\n")
    (tmp_path / "programs" / "find").chmod(0o755)


def test_a_folder_goes_there_and_comes_back_as_it_is(shared, mine, tmp_path):
    mine.chmod(0o700)
    one = copied("put", "lab", str(mine))
    assert (one["files"], one["bytes"]) == (len(NAMES), sum(len(n.encode()) for n in NAMES))
    assert tree(shared / "datasets" / "flowers") == tree(mine)
    assert (shared / "datasets" / "flowers").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (shared / "datasets").iterdir()] == ["flowers"]
    back = copied("get", "lab", "datasets/flowers", "--to", str(tmp_path / "back"))
    assert back["files"] == len(NAMES)
    assert tree(tmp_path / "back" / "flowers") == tree(mine)
    assert copied("get", "lab", "/datasets/flowers", "--to", str(tmp_path / "back"))["files"] == 0


def test_a_dataset_is_updated_after_a_question_and_loses_no_file(shared, mine, tmp_path):
    copied("put", "lab", str(mine))
    (mine / "plain").write_text("changed")
    (mine / "-rf").unlink()
    with pytest.raises(UsageError, match=r"Replace 1 file\(s\) of .*/datasets/flowers"):
        call("put", "lab", str(mine))
    assert copied("put", "lab", str(mine), "-y")["replaced"] == 1
    assert tree(shared / "datasets" / "flowers") == {**tree(mine), "-rf": "-rf"}
    assert "is the same" in call("put", "lab", str(mine)).stdout


def test_what_broke_off_is_gone_on_with(shared, mine):
    draft = shared / "datasets" / ".flowers.part"
    draft.mkdir()
    (mine / "plain").rename(draft / "plain")
    subprocess.run(["cp", "-p", draft / "plain", mine / "plain"], check=True)
    assert copied("put", "lab", str(mine))["files"] == len(NAMES) - 1
    assert not draft.exists()
    assert tree(shared / "datasets" / "flowers") == tree(mine)


def test_a_file_that_is_gone_since_a_put_broke_off_does_not_appear(shared, mine):
    draft = shared / "datasets" / ".flowers.part"
    draft.mkdir()
    (draft / "secret").write_text("removed since")
    copied("put", "lab", str(mine))
    assert tree(shared / "datasets" / "flowers") == tree(mine)


def test_a_list_that_breaks_off_is_no_list(shared, tmp_path, monkeypatch):
    (shared / "run").mkdir()
    lists(monkeypatch, tmp_path, ("d", 4096, "", ""))
    with (tmp_path / "programs" / "find").open("a") as file:
        file.write("exit 255\n")
    text = (tmp_path / "programs" / "find").read_text().replace("exec ", "")
    (tmp_path / "programs" / "find").write_text(text)
    with pytest.raises(GpubedError, match="did not list all"):
        call("get", "lab", "run", "--to", str(tmp_path))


def test_what_does_not_fit_is_refused_before_it_starts(shared, mine, tmp_path):
    with (mine / "large").open("wb") as sparse:
        sparse.truncate(2**43)
    with pytest.raises(GpubedError, match="are free there"):
        call("put", "lab", str(mine))
    assert not [*(shared / "datasets").iterdir()]


def test_what_is_no_file_and_leads_out_is_left_out_and_named(shared, mine, tmp_path, monkeypatch):
    os.mkfifo(mine / "pipe")
    (mine / "out").symlink_to("/etc/passwd")
    one = copied("put", "lab", str(mine))
    assert sorted(said.split()[0] for said in one["left_out"]) == ["'out'", "'pipe'"]
    at = shared / "datasets" / "flowers"
    assert (at / "out").is_symlink()
    monkeypatch.chdir(at)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        (at / "up").symlink_to("a/../../..")
        (at / "a/b/top").symlink_to("../../plain")
        one = copied("get", "lab", "datasets/flowers", "--to", str(tmp_path / "back"))
    assert sorted(said.split()[0] for said in one["left_out"]) == ["'out'", "'socket'", "'up'"]
    back = tree(tmp_path / "back" / "flowers")
    assert not {"out", "socket", "up", "pipe"} & set(back)
    assert back["a/b/top"] == "../../plain"


@pytest.mark.parametrize(
    "entries",
    [
        [("f", 1, "../evil", "")],
        [("f", 1, "/evil", "")],
        [("l", 1, "/evil", "plain")],
        [("f", 1, "a/../../evil", "")],
        [("d", 1, "..", ""), ("f", 1, "../evil", "")],
        [("l", 1, "l", "."), ("f", 1, "l/evil", "")],
        [("d", 1, "d", ""), ("l", 1, "d/l", ".."), ("l", 1, "d/l/evil", "../../..")],
        [("f", 1, "new/evil", "")],
        [("b", 1, "evil", "")],
    ],
)
def test_a_node_cannot_write_elsewhere(shared, tmp_path, monkeypatch, entries):
    (shared / "run/d").mkdir(parents=True)
    for name in ("evil", "run/evil"):
        (shared / name).write_text("x")
    lists(monkeypatch, tmp_path, ("d", 1, "", ""), *entries)
    one = copied("get", "lab", "run", "--to", str(tmp_path / "back"))
    assert "evil" in one["left_out"][-1] or ".." in one["left_out"][0]
    here = [path for path in tmp_path.rglob("evil") if shared not in path.parents]
    assert not [*here, *filter(os.path.lexists, ["/evil"])]


def test_what_is_here_by_other_means_stays(shared, tmp_path):
    (shared / "run/sub").mkdir(parents=True)
    (shared / "run/sub/file").write_text("theirs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    back = tmp_path / "back" / "run"
    back.mkdir(parents=True)
    (back / "sub").symlink_to(elsewhere)
    one = copied("get", "lab", "run", "--to", str(back.parent))
    assert one["left_out"] == ["'sub' is left out: the local folder has another file of that name"]
    assert not [*elsewhere.iterdir()]
    (back.parent / "model").symlink_to(elsewhere)
    (shared / "model").write_text("")
    with pytest.raises(UsageError, match="is of another kind"):
        call("get", "lab", "model", "--to", str(back.parent))


def test_a_node_that_sends_more_than_it_listed_is_stopped(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_SLACK", 10)
    (shared / "run").mkdir()
    (shared / "run" / "file").write_bytes(bytes(100_000))
    lists(monkeypatch, tmp_path, ("d", 1, "", ""), ("f", 5, "file", ""))
    with pytest.raises(GpubedError, match="sends more than it listed"):
        call("get", "lab", "run", "--to", str(tmp_path / "back"))


@pytest.mark.parametrize("path", ["../etc", "/etc/passwd", "/shared/../etc", "", "."])
def test_nothing_but_shared_storage_is_copied(shared, path):
    with pytest.raises(UsageError, match="is not below the shared storage"):
        call("get", "lab", path)
