"""What comes from a node stays below the folder that it was asked for."""

import os
import stat
import threading
from pathlib import Path, PurePosixPath

import paramiko
import pytest

from gpubed.core.copying import NotAName, get
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes import ssh
from gpubed.nodes.ssh import SSH
from support.samples import sample_allocation, sample_plan
from support.sftp_server import Disk, connected


@pytest.fixture
def connection():
    with connected() as client:
        yield client


@pytest.fixture
def sftp(connection):
    return paramiko.SFTPClient.from_transport(connection)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "node" / "run"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "loss.svg").write_text("<svg/>")
    (folder / "start.sh").write_text("exit")
    (folder / "start.sh").chmod(0o4755)
    return folder


def test_a_folder_comes_with_what_is_in_it(sftp, run, tmp_path):
    get(sftp, PurePosixPath(run), tmp_path / "here")
    assert (tmp_path / "here/plots/loss.svg").read_text() == "<svg/>"
    assert stat.S_IMODE((tmp_path / "here/start.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["../authorized_keys", "/etc/cron.d/own"])
def test_no_name_leads_out_of_the_folder(sftp, run, tmp_path, monkeypatch, name):
    (run.parent / "authorized_keys").write_text("ssh-ed25519 AAAA root@node")
    monkeypatch.setattr(Disk, "added", (name,))
    with pytest.raises(NotAName, match="listed as a file's name"):
        get(sftp, PurePosixPath(run), tmp_path / "here" / "run")
    assert not (tmp_path / "here" / "authorized_keys").exists()


def test_nothing_is_written_by_our_own_names(sftp, run, tmp_path):
    (run / "output.log").write_text("forged")
    (run / "origin").mkdir()
    (run / "origin" / "cluster.yml").write_text("forged")
    (run / "run.json").mkdir()
    (run / "lock").symlink_to("start.sh")
    (run / "plots" / "output.log").write_text("the job's")
    here = tmp_path / "here"
    here.mkdir()
    (here / "output.log").write_text("ours")
    own = {"output.log", "origin", "run.json", "lock"}
    left_out = get(sftp, PurePosixPath(run), here, own)
    why = "is left out: gpubed's own files have this name"
    assert sorted(left_out) == [f"{name!r} {why}" for name in sorted(own)]
    assert {path.name for path in here.iterdir()} == {"output.log", "plots", "start.sh"}
    assert (here / "output.log").read_text() == "ours"
    assert (here / "plots/output.log").read_text() == "the job's"


@pytest.mark.parametrize("name", ["RUN.JSON", "Output.log", "\u017fha256sums", "\uff32un.json"])
def test_nor_by_names_that_are_ours_on_disks_that_fold_them(sftp, run, tmp_path, name):
    (run / name).write_text("forged")
    own = {"output.log", "run.json", "SHA256SUMS"}
    [left_out] = get(sftp, PurePosixPath(run), tmp_path / "here", own)
    assert left_out.startswith(f"{name!r} is left out")
    assert not (tmp_path / "here" / name).exists()


def test_a_node_lets_nobody_else_write_what_is_here(sftp, run, tmp_path):
    (run / "model.pt").touch()
    (run / "model.pt").chmod(0o666)
    get(sftp, PurePosixPath(run), tmp_path / "here")
    assert stat.S_IMODE((tmp_path / "here/model.pt").stat().st_mode) == 0o644


def test_links_to_folders_and_pipes_are_left_out(sftp, run, tmp_path):
    (run / "again").symlink_to(run)
    (run / "last.svg").symlink_to("plots/loss.svg")
    (run / "nowhere").symlink_to("gone")
    os.mkfifo(run / "pipe")
    left_out = get(sftp, PurePosixPath(run), tmp_path / "here")
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "last.svg",
        "plots",
        "start.sh",
    }
    assert sorted(left_out) == [
        "'again' is left out: it is a link to a folder",
        "'nowhere' is left out: it is a link that leads nowhere",
        "'pipe' is left out: it is neither file nor folder",
    ]


def test_links_that_lead_out_of_the_folder_are_left_out(sftp, run, tmp_path):
    (run.parent / "secret").write_text("of the node")
    (run.parent / "run-2").mkdir()
    (run.parent / "run-2" / "metrics.json").write_text("{}")
    (run / "metrics.json").symlink_to("../secret")
    (run / "plots" / "next").symlink_to("../../run-2/metrics.json")
    left_out = get(sftp, PurePosixPath(run), tmp_path / "here")
    assert sorted(left_out) == [
        "'metrics.json' is left out: it is a link that leads out of the folder",
        "'plots/next' is left out: it is a link that leads out of the folder",
    ]
    came = {path.name for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert came == {"loss.svg", "start.sh"}


def test_a_link_that_may_not_be_looked_through_keeps_nothing_from_coming(
    sftp, run, tmp_path, monkeypatch
):
    real, asked = Disk.stat, []

    def stat_(self, path):
        asked.append(Path(path).name)
        return paramiko.SFTP_PERMISSION_DENIED if path.endswith("out") else real(self, path)

    (run / "out").symlink_to("/root/.ssh")
    monkeypatch.setattr(Disk, "stat", stat_)
    left_out = get(sftp, PurePosixPath(run), tmp_path / "here")
    assert left_out == ["'out' is left out: it is a link that leads out of the folder"]
    assert "out" not in asked, "where it leads is judged before anything there is looked at"


@pytest.mark.timeout(30)
def test_a_file_that_is_too_large_is_left_out(sftp, run, tmp_path):
    with (run / "sparse").open("wb") as sparse:
        sparse.truncate(2**40)
    left_out = get(sftp, PurePosixPath(run), tmp_path / "here")
    assert left_out == ["'sparse' is left out: it has 1 TiB, more than 64 GiB"]
    assert (tmp_path / "here/plots/loss.svg").exists()


@pytest.fixture
def head(connection, tmp_path, monkeypatch):
    """A session with a node whose storage hangs, at what `hangs` names; it is a STAND-IN."""
    monkeypatch.setattr(SSH, "_open", lambda _: connection.open_session())
    monkeypatch.setattr(ssh, "_SILENCE_S", 0.5)
    with SSH(sample_allocation(sample_plan()), Project(tmp_path).cluster("lab")) as session:
        yield session


@pytest.fixture
def hangs(monkeypatch):
    """A function that lets the server wait for ever in one of its calls for some paths."""
    back = threading.Event()

    def hang(call, name):
        real = getattr(Disk, call)

        def wait(self, path, *more):
            if str(path).endswith(name):
                back.wait()
            return real(self, path, *more)

        monkeypatch.setattr(Disk, call, wait)

    yield hang
    back.set()


SILENT = "cannot copy files with node-0: for 0.5 s, no data was transferred"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("stat", "run"),
        ("list_folder", "plots"),
        ("lstat", "start.sh"),
        ("open", "loss.svg"),
        # Its silence is no link that leads nowhere.
        ("canonicalize", "link"),
    ],
)
def test_a_storage_that_hangs_ends_the_copying(head, hangs, run, tmp_path, call, name):
    (run / "link").symlink_to("plots/loss.svg")
    hangs(call, name)
    with pytest.raises(GpubedError, match=SILENT) as caught:
        head.get(str(run), tmp_path / "here")
    assert caught.value.hint.endswith("gpubed verify lab")
