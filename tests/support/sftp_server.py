"""An SFTP server for folders of this machine: paramiko's, over a pair of sockets."""

import os
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import paramiko


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
        found.filename = os.fsencode(name)
        return found

    def stat(self, path):
        return self._attributes(os.stat, path)

    def canonicalize(self, path):
        return os.path.realpath(path)

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


@contextmanager
def connected():
    """Give a client's connection to such a server."""
    here, there = socket.socketpair()
    server, client = paramiko.Transport(there), paramiko.Transport(here)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.set_subsystem_handler("sftp", paramiko.SFTPServer, Disk)
    server.start_server(threading.Event(), Everyone())  # without waiting for the client
    client.start_client()
    client.auth_none("anyone")
    try:
        yield client
    finally:
        client.close()
        server.close()
