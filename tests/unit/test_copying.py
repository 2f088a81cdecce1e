"""What comes from a node stays below the folder that it was asked for."""

import os
import socket
import stat
import threading
from pathlib import Path, PurePosixPath

import paramiko
import pytest

from gpubed.copying import NotAName, as_name, get, put


class Disk(paramiko.SFTPServerInterface):
    """An SFTP server for a folder; root of its machine may add names to what it lists."""

    added = ()

    def list_folder(self, path):
        names = [*(each.name for each in Path(path).iterdir()), *self.added]
        return [self._described(name, Path(path) / name) for name in names]

    def _described(self, name, path):
        found = self.lstat(path)
        if isinstance(found, int):
            found = paramiko.SFTPAttributes()
        found.filename = name
        return found

    def stat(self, path):
        return self._attributes(os.stat, path)

    def lstat(self, path):
        return self._attributes(os.lstat, path)

    def _attributes(self, ask, path):
        try:
            return paramiko.SFTPAttributes.from_stat(ask(path))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    def open(self, path, flags, attr):
        handle = paramiko.SFTPHandle(flags)
        handle.readfile = handle.writefile = os.fdopen(os.open(path, flags, 0o600), "r+b")
        handle.stat = lambda: paramiko.SFTPAttributes.from_stat(Path(path).stat())
        return handle

    def mkdir(self, path, attr):
        Path(path).mkdir()
        return paramiko.SFTP_OK

    def chattr(self, path, attr):
        paramiko.SFTPServer.set_file_attr(path, attr)
        return paramiko.SFTP_OK


class Everyone(paramiko.ServerInterface):
    def check_auth_none(self, username):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED


@pytest.fixture
def sftp():
    here, there = socket.socketpair()
    server, client = paramiko.Transport(there), paramiko.Transport(here)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.set_subsystem_handler("sftp", paramiko.SFTPServer, Disk)
    server.start_server(threading.Event(), Everyone())  # without waiting for the client
    client.start_client()
    client.auth_none("anyone")
    try:
        yield paramiko.SFTPClient.from_transport(client)
    finally:
        client.close()
        server.close()


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


def test_and_goes(sftp, run, tmp_path):
    put(sftp, run, PurePosixPath(tmp_path / "there"))
    assert (tmp_path / "there/plots/loss.svg").read_text() == "<svg/>"


@pytest.mark.parametrize("name", ["../authorized_keys", "/etc/cron.d/own"])
def test_no_name_leads_out_of_the_folder(sftp, run, tmp_path, monkeypatch, name):
    (run.parent / "authorized_keys").write_text("ssh-ed25519 AAAA root@node")
    monkeypatch.setattr(Disk, "added", (name,))
    with pytest.raises(NotAName, match="listed as a file's name"):
        get(sftp, PurePosixPath(run), tmp_path / "here" / "run")
    assert not (tmp_path / "here" / "authorized_keys").exists()


def test_links_to_folders_and_pipes_are_left_out(sftp, run, tmp_path):
    (run / "again").symlink_to(run)
    (run / "last.svg").symlink_to("plots/loss.svg")
    (run / "nowhere").symlink_to("gone")
    os.mkfifo(run / "pipe")
    get(sftp, PurePosixPath(run), tmp_path / "here")
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "last.svg",
        "plots",
        "start.sh",
    }


@pytest.mark.parametrize("listed", ["", ".", "..", "a/b", "a\0b"])
def test_what_is_no_name(listed):
    with pytest.raises(NotAName):
        as_name(listed)
