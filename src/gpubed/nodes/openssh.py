"""Logs in with OpenSSH's client and the user's own `ssh_config`: aliases, jump hosts, keys.

Hosts must be in the user's `known_hosts`. OpenSSH runs in batch mode: a password or a second factor
needs a connection that the user opened before (`ControlMaster`).
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

import paramiko

from gpubed.core import copying, reading
from gpubed.core.errors import GpubedError
from gpubed.nodes.output import SSH_FAILED
from gpubed.nodes.ssh import CommandFailed, CommandResult, CommandTimedOut, Unreachable, in_sh

_OPTIONS = ("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15")
_UNPACK = "tar --extract --preserve-permissions --no-same-owner --directory=%s"
# Separates the command's output from the text that login shells print before it.
_BEGIN = "gpubed begins here"


class _Channel(socket.socket):
    """A socket with the attributes of a channel that paramiko's SFTP uses."""

    def get_name(self) -> str:
        return str(self.fileno())

    @property
    def closed(self) -> bool:
        return self.fileno() < 0


class Login:
    """A host where the user has an account; `destination` is `[user@]host[:port]`."""

    def __init__(self, destination: str) -> None:
        self.name = destination
        host, _, port = destination.rpartition(":")
        words = ["-p", port, host] if host and port.isdigit() else [destination]
        options = [f"-o{option}" for option in _OPTIONS]
        self._by_hand = shlex.join(["ssh", *words])
        self.words = ["ssh", *options, *words[:-1], "--", words[-1]]

    def command(self, script: str) -> list[str]:
        """Return the command that runs a script in a login shell there, where `module` works."""
        return [*self.words, in_sh(f"exec bash -lc {shlex.quote(script)}")]

    def run(
        self, script: str, *args: object, timeout: float = 60, check: bool = True, stdin: str = ""
    ) -> CommandResult:
        """Run a script there; arguments are quoted. Raises as `SSH.run` does."""
        line = script % tuple(shlex.quote(str(arg)) for arg in args) if args else script
        words, started = self.command(f"echo; echo {_BEGIN}; {line}"), time.monotonic()
        try:
            done = subprocess.run(
                words,
                input=stdin,
                timeout=timeout,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise CommandTimedOut(self.name, line, CommandResult("", "", -1, timeout)) from None
        _, has_begun, answer = done.stdout.partition(f"{_BEGIN}\n")
        code = done.returncode
        result = CommandResult(answer, done.stderr, code, time.monotonic() - started)
        if code == SSH_FAILED and not has_begun:
            hint = f"{self._by_hand}   must work without a question (docs/how-to/slurm.md)"
            if "Host key verification failed" in done.stderr:
                hint = f"{self._by_hand}   once; compare the host key with the published one"
            elif "resolve hostname" in done.stderr:
                host = self.words[-1].rpartition("@")[2]
                hint = f"correct backend.login, or name {host} in ~/.ssh/config"
            why = f"the login to {self.name} fails: {reading.tail(done.stderr, 3)}"
            raise Unreachable(why, hint)
        if check and code:
            raise CommandFailed(self.name, line, result)
        return result

    def get(self, remote: str, local: Path, own: Collection[str] = ()) -> list[str]:
        """Copy a file or a folder to exactly the path `local`; see `SSH.get`."""
        our_end, ssh_end = socket.socketpair()
        channel = _Channel(fileno=our_end.detach())
        command = [*self.words[:1], "-s", *self.words[1:], "sftp"]
        number = ssh_end.fileno()
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdin=number, stdout=number, stderr=errors),
            channel,
        ):
            ssh_end.close()
            try:
                sftp = paramiko.SFTPClient(channel)  # type: ignore[arg-type]
                return copying.get(sftp, PurePosixPath(remote), local, own)
            except (OSError, EOFError, paramiko.SSHException) as error:
                errors.seek(0)
                why = reading.tail(errors.read().decode(errors="replace"), 3) or str(error)
                raise GpubedError(f"{remote} on {self.name} cannot be copied: {why}") from None

    def inside(self, path: str) -> str:
        """Return a path of that host, with `~` replaced by the user's home."""
        home = self.run("cd && pwd -P").stdout.strip() if path.startswith("~") else ""
        return path.replace("~", home, 1)


def send(
    login: Sequence[str], folder: Path, names: Iterable[str], remote: str, *, follow: bool = False
) -> None:
    """Copy files of a folder to a folder of another host, keeping permissions.

    Symbolic links are copied as links; with `follow`, their targets are copied. `login` is the
    `ssh` command that logs in to the host.

    Raises:
        GpubedError: A file cannot be read here or written there.
    """
    unpack = f"mkdir -p {shlex.quote(remote)} && {_UNPACK % shlex.quote(remote)}"
    with tempfile.TemporaryFile() as names_file, tempfile.TemporaryFile() as errors:
        names_file.write(b"".join(os.fsencode(name) + b"\0" for name in names))
        names_file.seek(0)
        pack = subprocess.Popen(
            [
                *("tar", "--create", f"--directory={folder}"),
                *("--no-recursion", "--null", "--files-from=-"),
                *(["--dereference"] if follow else []),
            ],
            stdin=names_file,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        unpacked = subprocess.run(
            [*login, f"sh -c {shlex.quote(unpack)}"], stdin=pack.stdout, stderr=errors, check=False
        )
        if pack.stdout:
            pack.stdout.close()
        # 1: a file, such as a log, grew while it was read (tar(1), "Return value").
        if pack.wait() > 1 or unpacked.returncode:
            errors.seek(0)
            why = errors.read().decode(errors="replace").strip().splitlines()[-3:]
            raise GpubedError(
                f"{folder} could not be sent to {login[-1]}: "
                f"{' '.join(why) or 'the connection ended'}"
            )
