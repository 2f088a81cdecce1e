"""Slivers that are SSH servers of this process: nodes for tests that need no machines.

A door lets the slice's users in with their keys, proves its host key as a startup command
would (`openssl dgst -hmac`), and says yes to everything else that it is asked to run.
"""

import hashlib
import hmac
import re
import socket
import threading
from contextlib import suppress

import paramiko

from .nodes import NodeBroken, Reach
from .request import script

_HMAC = re.compile(r"-hmac (\S+)")
_PAUSE_S = 0.05
_SHOWS_PROOF = "gpubed-host-keys.mac"


class Doors:
    """Slivers that answer SSH on ports of 127.0.0.1; `commands` is all that was run on them."""

    def __init__(self):
        self._doors, self.commands = {}, []

    def reach(self, sliver):
        """Opens a port at which nobody answers yet."""
        door = self._doors[sliver.urn] = _Door(sliver, self.commands)
        return Reach("127.0.0.1", door.port)

    def start(self, slice_, sliver):
        if sliver.urn not in self._doors:
            raise NodeBroken("it was removed before it started")
        self._doors[sliver.urn].open(slice_.users)

    def restart(self, slice_, sliver):
        self.start(slice_, sliver)

    def remove(self, slice_, slivers):
        for sliver in slivers:
            if door := self._doors.pop(sliver.urn, None):
                door.close()

    def close(self):
        for door in self._doors.values():
            door.close()
        self._doors.clear()


class _Door:
    def __init__(self, sliver, commands):
        self.commands = commands
        self.users, self._key = {}, paramiko.ECDSAKey.generate()
        token = _HMAC.search(script(sliver.request.element))
        keys = f"{self._key.get_name()} {self._key.get_base64()}\n"
        mac = hmac.new(token[1].encode() if token else b"", keys.encode(), hashlib.sha256)
        self.proof = f"{keys}--\n{mac.hexdigest()} */var/tmp/gpubed-host-keys\n" if token else ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._serving = False

    def open(self, users):
        self.users = users
        if not self._serving:
            self._serving = True
            threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._serving = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self):
        while self._serving:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._key)
            with suppress(OSError, EOFError, paramiko.SSHException):
                transport.start_server(threading.Event(), _Guest(self))


class _Guest(paramiko.ServerInterface):
    """One connection."""

    def __init__(self, door):
        self._door = door

    def get_allowed_auths(self, username):
        return "publickey"

    def check_auth_publickey(self, username, key):
        known = {line.split()[1] for line in self._door.users.get(username, ())}
        right = key.get_base64() in known
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        self._door.commands.append(command.decode())
        # Paramiko says "begun" once this has returned, and an end must not come before that.
        threading.Timer(_PAUSE_S, self._run, (channel, command.decode())).start()
        return True

    def _run(self, channel, command):
        with suppress(OSError, EOFError, paramiko.SSHException):
            if command.endswith("sh -s"):
                channel.makefile("rb").read()
            if _SHOWS_PROOF in command:
                channel.sendall(self._door.proof.encode())
            channel.send_exit_status(0)
            channel.close()
