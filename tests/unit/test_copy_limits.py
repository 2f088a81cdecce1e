"""A node whose SFTP server lies, or has more than anybody's results, holds up no controller."""

import shutil
import stat
from types import SimpleNamespace

import paramiko
import pytest
from paramiko.sftp import CMD_NAME

from gpubed.core import copying
from gpubed.core.copying import LimitExceeded
from gpubed.core.paths import Project
from gpubed.nodes.ssh import SSH
from support.samples import sample_allocation, sample_plan
from support.sftp_server import Disk, connected

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def head(tmp_path, monkeypatch):
    """A session with a node whose server may be made to lie: a STAND-IN."""
    with connected() as connection:
        monkeypatch.setattr(SSH, "_open", lambda _: connection.open_session())
        with SSH(sample_allocation(sample_plan()), Project(tmp_path).cluster("lab")) as session:
            yield session


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "node" / "run"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    return folder


def named(name, mode=stat.S_IFREG):
    found = paramiko.SFTPAttributes()
    found.filename, found.st_mode, found.st_size = name, mode | 0o755, 0
    return found


def test_a_folder_that_is_listed_without_end_ends_the_copying(head, run, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_MOST_ENTRIES", 1000)
    page = [named(f"file-{number}") for number in range(100)]
    monkeypatch.setattr(paramiko.SFTPHandle, "_get_next_files", lambda _: page)
    with pytest.raises(LimitExceeded) as caught:
        head.get(str(run), tmp_path / "here")
    assert caught.value.message == (
        f"cannot copy files with node-0: the node lists more than 1000 entries in {run}, the last "
        f"in {str(run)!r}"
    )
    assert "inspect the node" in caught.value.hint


def test_and_folders_that_have_folders_without_end(head, run, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_MOST_ENTRIES", 50)
    folders = [named(f"folder-{number}", stat.S_IFDIR) for number in range(3)]
    monkeypatch.setattr(Disk, "list_folder", lambda *_: folders)
    monkeypatch.setattr(Disk, "lstat", lambda *_: named("folder", stat.S_IFDIR))
    with pytest.raises(LimitExceeded, match=rf"more than 50 entries in {run}, .*/folder-0.*'\n"):
        head.get(str(run), tmp_path / "here")
    assert len([*(tmp_path / "here").rglob("*")]) <= 50


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(copying, "_LONGEST_S", 0.5)
    monkeypatch.setattr(copying, "_CHECK_EVERY_S", 0.05)


def test_a_server_that_takes_for_ever_ends_it_though_it_is_never_silent(
    head, run, tmp_path, monkeypatch, short
):
    """It answers what nobody asked: paramiko waits for another answer, for ever."""

    def babble(self, number, *_):
        while True:
            message = paramiko.Message()
            message.add_int(number + 1_000_000)
            try:
                self._send_packet(CMD_NAME, message)
            except (OSError, EOFError):
                return

    monkeypatch.setattr(paramiko.SFTPServer, "_read_folder", babble)
    with pytest.raises(
        LimitExceeded, match=rf"copying {run} took longer than allowed: 0 bytes in .* s"
    ):
        head.get(str(run), tmp_path / "here")


def test_all_files_of_a_copy_leave_a_tenth_of_the_disk_that_was_free(
    head, run, tmp_path, monkeypatch
):
    here = tmp_path / "here"

    def usage(_):
        return SimpleNamespace(free=1000 - sum(len(path.read_bytes()) for path in here.glob("*")))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    (run / "metrics.json").unlink()
    for number in range(12):
        (run / f"file-{number}").write_bytes(bytes(90))
    left_out = head.get(str(run), here)
    assert len([*here.iterdir()]) == 10
    assert [why.partition(": ")[2] for why in left_out] == [
        "it has 90 bytes, and the disk here has room for 0 bytes"
    ] * 2
