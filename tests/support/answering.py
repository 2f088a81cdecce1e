"""An SSH server on loopback that runs what it is told, and that somebody else can replace.

It is a STAND-IN for a node: paramiko's server in this process, whose commands run here. The
protocol, and all who come to it (OpenSSH, Ansible, mitogen, gpubed), are real.
"""

import contextlib
import socket
import subprocess
import threading

import paramiko


class Host(paramiko.ServerInterface):
    """Lets in whoever comes."""

    def __init__(self):
        self.own, self.other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
        self.key, self.logins, self._transports = self.own, [], []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def swap(self):
        """Somebody else is in its place from now on, and who was there has to come again."""
        self.key = self.other
        self.drop()

    def drop(self):
        """Lose all connections."""
        while self._transports:
            self._transports.pop().close()

    def close(self):
        self._listening.close()
        self.drop()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection):
        transport, shown = paramiko.Transport(connection), self.key
        self._transports.append(transport)
        transport.add_server_key(shown)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=_Visitor(self.logins, shown))


class _Visitor(paramiko.ServerInterface):
    def __init__(self, logins, shown):
        self.logins, self.shown = logins, shown

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username):
        return "publickey"

    def check_channel_request(self, kind, chanid):
        if kind != "session":
            return paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        self.logins.append(self.shown)
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=_run, args=(channel, command), daemon=True).start()
        return True


def _run(channel, command):
    """Run a command as an SSH server does: three streams, then its exit code."""
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    outputs = [
        threading.Thread(target=_pump, args=(process.stdout, channel.sendall), daemon=True),
        threading.Thread(target=_pump, args=(process.stderr, channel.sendall_stderr), daemon=True),
    ]
    for thread in outputs:
        thread.start()
    threading.Thread(target=_feed, args=(channel, process.stdin), daemon=True).start()
    code = process.wait()
    for thread in outputs:
        thread.join()
    with contextlib.suppress(OSError):
        channel.send_exit_status(code)
        channel.close()


def _pump(stream, send):
    with contextlib.suppress(OSError):
        while chunk := stream.read(65536):
            send(chunk)


def _feed(channel, stdin):
    with contextlib.suppress(OSError):
        while chunk := channel.recv(65536):
            stdin.write(chunk)
    stdin.close()
