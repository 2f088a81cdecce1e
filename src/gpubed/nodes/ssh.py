"""Connects to nodes by SSH, runs commands and copies files.

Host keys come from the allocation and are enforced. Connecting is retried; commands never are,
because the first attempt may have had effects. Never prints.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

import paramiko
from paramiko.pkey import UnknownKeyType

from gpubed.core import copying, reading
from gpubed.core.copying import LimitExceeded
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, assets
from gpubed.nodes.allocation import Allocation, Node, host_as_node, known_as

# Without a handler, Python would print paramiko's warnings on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CONNECT_S = 15.0
_PAUSES_S = (0.0, 0.5, 1.0)  # before each attempt to connect
_NO_EXIT_CODE = -1  # as in paramiko
_FORBIDDEN = 1  # RFC 4254, section 5.1: administratively prohibited
_KEEPALIVE_S = 15
# Timeout of SFTP: a shared folder may hang forever; NFS takes up to 90 s to recover.
_SILENCE_S = 120.0
_SHOWN = 300  # characters of a command in an error
_LONGEST = 16 * 2**20  # bytes of a command's output; the rest is discarded
_ELSE = "if not, do not continue (docs/how-to/host-keys.md)"
_AS_ROOT = (
    'if sudo -n true 2> /dev/null; then exec sudo -n python3 - "$@"; else exec python3 - "$@"; fi'
)
_PROGRAM_S = 180.0  # apt is slow
_FORWARD = "its sshd_config must allow it: AllowTcpForwarding yes (man sshd_config)"
CONNECTION_ERRORS = (OSError, EOFError, paramiko.SSHException)


@dataclass(frozen=True)
class CommandResult:
    """The result of a command; its exit code is -1 when it was cut off or killed."""

    stdout: str
    stderr: str
    exit_code: int
    seconds: float

    @property
    def tail(self) -> str:
        """The last lines of stderr, or of stdout if stderr is empty."""
        return reading.tail(self.stderr) or reading.tail(self.stdout)


class Unreachable(GpubedError):
    """A node does not answer SSH, or another host answers in its place.

    `on_the_way` tells whether a hop failed, so that the state of the node is unknown.
    """

    on_the_way = False

    @property
    def is_silence(self) -> bool:
        """Whether the node may have died: all hops work, and no other host answers."""
        return not self.on_the_way


class LoginRefused(Unreachable):
    """The node is up and presents its own host key, but refuses the login."""

    is_silence = False


class HostKeyMismatch(Unreachable):
    """A host presents another host key than the allocated node's; never retried."""

    is_silence = False

    def __init__(
        self, host: str, expected: Iterable[str], presented: str, hint: str | None = None
    ) -> None:
        own = " or ".join(map(_fingerprint, expected))
        super().__init__(
            f"{host} presents the host key {_fingerprint(presented)}, but its own is {own}: "
            "another host may be answering, so gpubed did not log in",
            hint,
        )


class _HopFailed(ConnectionError):
    """A failure of a hop; retried like other connection errors."""

    def __init__(self, why: Unreachable) -> None:
        super().__init__(why.message)
        why.on_the_way = True
        self.why = why


class CommandFailed(GpubedError):
    """A command ended with a non-zero exit code."""

    def __init__(self, node: str, command: str, result: CommandResult) -> None:
        what = "a script" if "\n" in command or len(command) > _SHOWN else f"`{command}`"
        how = f"failed with exit code {result.exit_code}"
        if isinstance(self, CommandTimedOut):
            how = f"was cut off after {result.seconds:.0f} s"
        elif result.exit_code == _NO_EXIT_CODE:
            how = "was killed, or the connection was lost"
        super().__init__(f"{what} on {node} {how}\n{result.tail}".rstrip())
        self.node, self.command, self.result = node, command, result


class CommandTimedOut(CommandFailed):
    """A command took too long and was cut off."""


class SSH:
    """A connection to a node; opened when first used, closed by `close` or `with`.

    Args:
        target: A node; an allocation stands for its head.
        identity: Path of a private key to use instead of the cluster's; an SSH agent may hold it.
    """

    def __init__(
        self, target: Node | Allocation, paths: ClusterPaths, identity: str | None = None
    ) -> None:
        self.node = target.head if isinstance(target, Allocation) else target
        self._paths = paths
        self._identity = identity
        self._client: paramiko.SSHClient | None = None
        self._jump: SSH | None = None
        if self.node.via:
            *before, hop = self.node.via
            self._jump = SSH(host_as_node(hop, via=tuple(before)), paths, hop.identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, address: str) -> SSH:
        """Return a session with the same host and hops, at another address of the host."""
        node = self.node.model_copy(update={"control_address": address})
        return SSH(node, self._paths, self._identity)

    def close(self) -> None:
        """Close the connection and those to its hops."""
        if self._client:
            self._client.close()
            self._client = None
        if self._jump:
            self._jump.close()

    def run(
        self,
        command: str,
        *args: object,
        timeout: float = 60.0,
        check: bool = True,
        stdin: str = "",
    ) -> CommandResult:
        """Run a command by `sh`: ``run("rm -f %s", path)``; arguments are quoted.

        Raises `Unreachable` if the node does not answer (the command has not started),
        `CommandFailed` if the exit code is not 0 and `check` is true, `CommandTimedOut` if the
        command took longer than `timeout` seconds.
        """
        line = command % tuple(shlex.quote(str(arg)) for arg in args) if args else command
        channel = self._open()
        with channel:
            with self._connected():
                channel.exec_command(in_sh(line))
            result, timed_out = _collect(channel, stdin.encode(), timeout)
        if timed_out:
            raise CommandTimedOut(self.node.name, line, result)
        if check and result.exit_code:
            raise CommandFailed(self.node.name, line, result)
        return result

    def put(self, local: Path, remote: str) -> None:
        """Copy a file, or a folder with its content, to exactly the path `remote`."""
        with self._sftp() as sftp:
            copying.put(sftp, local, PurePosixPath(remote))

    def write(self, remote: str, content: str, mode: int = 0o644) -> None:
        """Write a file; its permissions are set to `mode` before the content is written."""
        with self._sftp() as sftp, sftp.open(remote, "w") as file:
            file.chmod(mode)
            file.write(content)

    def get(self, remote: str, local: Path, own: Collection[str] = ()) -> list[str]:
        """Copy a file, or a folder with its content, to exactly the path `local`.

        Names in `own` are never overwritten. Returns a sentence for each file that was left out,
        with the reason. Raises `NotAName` if the node lists a name that leads out of its folder.
        """
        with self._sftp() as sftp:
            return copying.get(sftp, PurePosixPath(remote), local, own)

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Wait until a login runs a command; raise `Unreachable` with the last failure."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.run("true", timeout=CONNECT_S)
                return
            except HostKeyMismatch:
                raise
            except (Unreachable, CommandFailed):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def answers(self, port: int, timeout: float) -> bool:
        """Return whether a TCP port of the node accepts connections, through the same hops."""
        there = (self.node.control_address, port)
        try:
            if self._jump is None:
                socket.create_connection(there, timeout).close()
            else:
                transport = self._jump._transport()
                transport.open_channel("direct-tcpip", there, ("", 0), timeout=timeout).close()
        except CONNECTION_ERRORS:
            return False
        return True

    def _open(self) -> paramiko.Channel:
        """Return a fresh channel, after connecting or reconnecting if needed."""
        for pause in _PAUSES_S:
            time.sleep(pause)
            try:
                return self._transport().open_session(timeout=CONNECT_S)
            except paramiko.BadHostKeyException as error:
                raise self._mismatch(error.key) from None
            except CONNECTION_ERRORS as error:
                self.close()
                why = self.unreachable(error)
        raise why

    def _transport(self) -> paramiko.Transport:
        if self._client is None:
            self._client = self._connect()
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            raise EOFError("the connection was lost")
        return transport

    def _connect(self) -> paramiko.SSHClient:
        node, client = self.node, paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        name = known_as(node.control_address, node.port)
        for key in map(_public_key, node.host_keys):
            client.get_host_keys().add(name, key.get_name(), key)
        try:
            client.connect(
                node.control_address,
                node.port,
                node.user,
                sock=self._through(),
                look_for_keys=False,
                **self._credentials(),
                timeout=CONNECT_S,
                banner_timeout=CONNECT_S,
                auth_timeout=CONNECT_S,
            )
        except BaseException as error:
            transport = client.get_transport()
            client.close()
            told = (paramiko.AuthenticationException, paramiko.BadHostKeyException)
            connected = transport and transport.initial_kex_done
            if isinstance(error, CONNECTION_ERRORS) and not isinstance(error, told) and connected:
                # paramiko's own errors mislead: a refused RSA key is reported as not an Ed25519
                # key, and a missing one as a missing file.
                raise paramiko.AuthenticationException(_words(error)) from error
            raise
        transport = client.get_transport()
        if transport:
            transport.set_keepalive(_KEEPALIVE_S)
        return client

    def _credentials(self) -> dict[str, Any]:
        if self._identity:
            return {"key_filename": str(Path(self._identity).expanduser()), "allow_agent": True}
        path = self._paths.private_key
        try:
            key = paramiko.Ed25519Key.from_private_key_file(str(path))
        except (OSError, paramiko.SSHException) as error:
            raise GpubedError(f"the cluster's key {path} cannot be read: {error}") from None
        return {"pkey": key, "allow_agent": False}

    def dial(self) -> socket.socket | paramiko.Channel:
        """Connect to the node's SSH port, through its hops, without starting SSH."""
        return self._through() or socket.create_connection(
            (self.node.control_address, self.node.port), CONNECT_S
        )

    def _through(self) -> paramiko.Channel | None:
        if self._jump is None:
            return None
        there = (self.node.control_address, self.node.port)
        try:
            transport = self._jump._transport()
        except paramiko.BadHostKeyException as error:
            mismatch = self._jump._mismatch(error.key)
            mismatch.on_the_way = True
            raise mismatch from None
        except CONNECTION_ERRORS as error:
            raise _HopFailed(self._jump.unreachable(error)) from None
        try:
            return transport.open_channel("direct-tcpip", there, ("", 0), timeout=CONNECT_S)
        except paramiko.ChannelException as error:
            if error.code != _FORBIDDEN:  # the hop tried to connect and got no answer
                raise
            why = f"{self._jump.node.name} forwards nothing to {self.node.name}: {error.text}"
            raise _HopFailed(LoginRefused(why, _FORWARD)) from None

    def unreachable(self, error: Exception) -> Unreachable:
        """Return the error that explains why the node cannot be reached."""
        node, cluster = self.node, self._paths.name
        if isinstance(error, _HopFailed):
            return error.why
        if isinstance(error, paramiko.PasswordRequiredException):
            return LoginRefused(
                f"the key {self._identity} for {node.name} has a passphrase",
                f"ssh-add {shlex.quote(str(self._identity))}; for a watch of systemd's also: "
                f"gpubed watch {cluster} --install",
            )
        kind = Unreachable
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            kind, why = LoginRefused, f"shares no algorithm of SSH with gpubed: {error}"
        elif isinstance(error, paramiko.AuthenticationException):
            kind = LoginRefused
            why = f"does not accept the key {self._identity or self._paths.private_key}"
            if isinstance(error.__cause__, OSError):
                why += f": {error.__cause__.strerror}"
        else:
            why = f"does not answer SSH on {node.control_address}:{node.port}: {_words(error)}"
        return kind(
            f"{node.name} {why}",
            f"gpubed up {cluster}; if that reports it, see to the host itself: power, network, "
            "sshd; a node that is removed on its testbed is created again",
        )

    def _mismatch(self, presented: paramiko.PKey) -> HostKeyMismatch:
        node = self.node
        return HostKeyMismatch(
            f"{node.name} ({known_as(node.control_address, node.port)})",
            node.host_keys,
            f"{presented.get_name()} {presented.get_base64()}",
            # Hosts that accept the user's own key have their host keys in the user's files.
            f"if you reinstalled it, correct its key in your known_hosts or in cluster.yml; {_ELSE}"
            if self._identity
            else f"if you reinstalled it: gpubed up {self._paths.name} --refresh; {_ELSE}",
        )

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except CONNECTION_ERRORS as error:
            raise self.unreachable(error) from None

    @contextmanager
    def _sftp(self) -> Iterator[paramiko.SFTPClient]:
        cannot = f"cannot copy files with {self.node.name}"
        channel = self._open()
        with self._connected():
            channel.invoke_subsystem("sftp")
        channel.settimeout(_SILENCE_S)
        try:
            with channel, paramiko.SFTPClient(channel) as sftp:
                yield sftp
        except UnicodeDecodeError as error:
            raise GpubedError(
                f"{cannot}: a name there is not UTF-8: {error.object!r}", "rename it there"
            ) from None
        except LimitExceeded as error:
            raise LimitExceeded(f"{cannot}: {error.message}", error.hint) from None
        except CONNECTION_ERRORS as error:
            if copying.is_silence(error):
                raise GpubedError(
                    f"{cannot}: for {_SILENCE_S:g} s, no data was transferred",
                    f"its disk or a shared folder may hang: gpubed verify {self._paths.name}",
                ) from None
            raise GpubedError(f"{cannot}: {error}") from None


def in_sh(command: str) -> str:
    """Wrap a command so that every login shell runs it by `sh`, with umask 022.

    A command with newlines, `!` or backslashes is encoded, because csh and fish quote them by
    other rules.
    """
    command = f"umask 022; {command}"
    if not {"\n", "!", "\\"}.isdisjoint(command):
        encoded = base64.b64encode(command.encode()).decode()
        command = f'eval "$(echo {encoded} | base64 -d)"'
    return f"exec sh -c {shlex.quote(command)}"


def is_silent(node: Node, error: GpubedError | None) -> bool:
    """Return whether an error means that a node is silent, and no other host answers in its place.

    If the last hop is the node itself, at another address, the hop's silence counts.
    """
    refused = isinstance(error, LoginRefused | HostKeyMismatch)
    return isinstance(error, Unreachable) and not refused and error.on_the_way == node.is_last_hop


def is_hidden(node: Node, error: GpubedError | None) -> bool:
    """Return whether an error is of a hop, so that the state of the node is unknown."""
    return isinstance(error, Unreachable) and error.on_the_way and not node.is_last_hop


def agent_keys(node: Node) -> list[str]:
    """Return the keys of a node's hops that only an SSH agent can use: their files do not load."""

    def opens(identity: str) -> bool:
        try:
            paramiko.PKey.from_path(Path(identity).expanduser())
        except (OSError, TypeError, ValueError, paramiko.SSHException, UnknownKeyType):
            return False
        return True

    return [hop.identity for hop in node.via if hop.identity and not opens(hop.identity)]


def greet(node: Node, paths: ClusterPaths) -> None:
    """Log in to a node and out again; raises `Unreachable` if that fails."""
    with SSH(node, paths) as ssh:
        ssh.run("true")


def run_program(ssh: SSH, program: str, *words: str, check: bool = True) -> CommandResult:
    """Run a Python program of `roles` on a node without installing it.

    It runs as root if sudo needs no password.
    """
    text = reading.file(assets() / "roles" / program).text()
    command = " ".join(["sh -c %s sh", *("%s" for _ in words)])
    return ssh.run(command, _AS_ROOT, *words, check=check, stdin=text, timeout=_PROGRAM_S)


def _public_key(text: str) -> paramiko.PKey:
    try:
        kind, encoded = text.split()[:2]
        return paramiko.PKey.from_type_string(kind, base64.b64decode(encoded))
    except (ValueError, paramiko.SSHException) as error:
        raise GpubedError(f"{text[:80]!r} is no host key: {error}") from None


def _fingerprint(key: str) -> str:
    kind, encoded = key.split()[:2]
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(encoded)).digest())
    return f"SHA256:{digest.decode().rstrip('=')} ({kind})"


def _words(error: Exception) -> str:
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        reasons = (getattr(each, "strerror", None) or str(each) for each in error.errors.values())
        return "; ".join(dict.fromkeys(filter(None, reasons))) or type(error).__name__
    return str(error) or type(error).__name__


def _collect(channel: paramiko.Channel, stdin: bytes, timeout: float) -> tuple[CommandResult, bool]:
    """Feed a command, and read both of its streams at the same time: either may fill its window."""
    started = time.monotonic()
    deadline = started + timeout
    streams: tuple[list[bytes], list[bytes]] = ([], [])
    threads = [
        threading.Thread(target=_drain, args=(receive, into), daemon=True)
        for receive, into in zip((channel.recv, channel.recv_stderr), streams, strict=True)
    ]
    threads.append(threading.Thread(target=_feed, args=(channel, stdin), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    channel.status_event.wait(max(0.0, deadline - time.monotonic()))
    timed_out = not channel.status_event.is_set() or any(t.is_alive() for t in threads)
    exit_code = _NO_EXIT_CODE if timed_out else channel.recv_exit_status()
    stdout, stderr = (b"".join(chunks).decode(errors="replace") for chunks in streams)
    seconds = time.monotonic() - started
    return CommandResult(stdout, stderr, exit_code, seconds), timed_out


def _drain(receive: Callable[[int], bytes], into: list[bytes]) -> None:
    room = _LONGEST
    while chunk := receive(65536):
        into.append(chunk[:room])
        room = max(0, room - len(chunk))


def _feed(channel: paramiko.Channel, content: bytes) -> None:
    try:
        channel.sendall(content)
        channel.shutdown_write()
    except OSError:
        pass  # the command ended without reading its input
