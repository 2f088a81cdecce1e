"""Commands over SSH: quoting, results, errors, and what is retried."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes import ssh
from gpubed.nodes.allocation import Hop, Node
from gpubed.nodes.ssh import SSH, CommandFailed, LoginRefused, Unreachable

pytestmark = pytest.mark.process

NODE = Node(
    name="node-0",
    id="1",
    group="node",
    role="head",
    control_address="192.0.2.1",
    experiment_address=None,
    host_keys=(),
)


class Channel:
    """A channel on which a command answers at once, or never."""

    def __init__(
        self, stdout: bytes = b"", stderr: bytes = b"", code: int = 0, hangs: bool = False
    ) -> None:
        self._answers = {"out": [stdout], "err": [stderr]}
        self._code = code
        self.status_event = threading.Event()
        self._end = threading.Event()
        if not hangs:
            self.status_event.set()
            self._end.set()
        self.commands: list[str] = []
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def exec_command(self, command: str) -> None:
        self.commands.append(command)

    def recv(self, _: int) -> bytes:
        return self._next("out")

    def recv_stderr(self, _: int) -> bytes:
        return self._next("err")

    def _next(self, stream: str) -> bytes:
        if self._answers[stream]:
            return self._answers[stream].pop()
        self._end.wait()
        return b""

    def sendall(self, content: bytes) -> None:
        self.received += content

    def shutdown_write(self) -> None:
        pass

    def recv_exit_status(self) -> int:
        return self._code


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return Project(tmp_path).cluster("lab")


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh.time, "sleep", lambda _: None)


def connection(channel: Channel, paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> SSH:
    made = SSH(NODE, paths)
    monkeypatch.setattr(made, "_open", lambda: channel)
    return made


def test_arguments_are_quoted(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    connection(channel, paths, monkeypatch).run("ls %s %s", "a b; rm -rf /", Path("/x"))
    assert channel.commands == [ssh.in_sh("ls 'a b; rm -rf /' /x")]


@pytest.mark.parametrize("shell", ["dash", "bash", "tcsh", "fish"])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("printf 'it'\"'\"'s %s' \"$((1 + 1))\"", "it's 2"),
        ("printf %s hi!there", "hi!there"),
        (r"printf '%s' 'a\\b'", r"a\\b"),
        ("for i in 1 2\ndo printf $i\ndone", "12"),
        ("cat; exit 7", "stdin"),
        ("printf %s " + "x" * 30_000 + " | wc -c", "30000\n"),
        ("umask", "0022\n"),
    ],
    ids=["quote", "history", "backslash", "lines", "stdin", "long", "umask"],
)
def test_any_login_shell_runs_a_command_as_sh_does(shell: str, command: str, says: str) -> None:
    """tcsh and fish have rules of their own for what stands in quotes."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-c", ssh.in_sh(command)],
        input="stdin",
        capture_output=True,
        text=True,
        check=False,
        umask=0o077,
    )
    assert (done.stdout, done.stderr) == (says, "")
    assert done.returncode == (7 if "exit" in command else 0)


def test_failure_carries_result_and_last_ten_lines(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(f"line {i}" for i in range(30)).encode()
    with pytest.raises(CommandFailed) as caught:
        connection(Channel(b"", lines, 7), paths, monkeypatch).run("make")
    message = str(caught.value)
    assert message.startswith("`make` on node-0 failed with exit code 7\nline 20\n")
    assert message.endswith("line 29")
    assert caught.value.result.exit_code == 7


class Refusing:
    """Stands for the opening of a connection that fails a few times."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        raise self.errors[min(self.calls, len(self.errors)) - 1]


@pytest.mark.parametrize(
    ("identity", "way_on"), [(None, "gpubed up lab --refresh"), ("/my/key", "your known_hosts")]
)
def test_wrong_host_key_is_not_retried_and_named(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, identity: str | None, way_on: str
) -> None:
    own, seen = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    refusing = Refusing([paramiko.BadHostKeyException("192.0.2.1", seen, own)])
    known = f"{own.get_name()} {own.get_base64()}"
    made = SSH(NODE.model_copy(update={"host_keys": (known,)}), paths, identity)
    monkeypatch.setattr(made, "_connect", refusing)
    with pytest.raises(ssh.HostKeyMismatch) as caught:
        made.wait_ready()
    assert refusing.calls == 1
    for part in (
        "node-0 (192.0.2.1)",
        own.fingerprint,
        seen.fingerprint,
        way_on,
        "do not continue",
    ):
        assert part in str(caught.value)


class Nobody(paramiko.ServerInterface):
    """A server that lets nobody in."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node with a real SSH server that lets nobody in; every connection goes to it."""
    key, servers = paramiko.ECDSAKey.generate(), []

    def connect(*_: object) -> socket.socket:
        here, there = socket.socketpair()
        servers.append(paramiko.Transport(there))
        servers[-1].add_server_key(key)
        servers[-1].start_server(threading.Event(), Nobody())
        return here

    monkeypatch.setattr(SSH, "_through", connect)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield NODE.model_copy(update={"host_keys": (f"{key.get_name()} {key.get_base64()}",)})
    for server in servers:
        server.close()


def written(key: Any, passphrase: bytes = b"") -> bytes:
    """Return a private key as ssh-keygen writes it."""
    kind = serialization.BestAvailableEncryption(passphrase) if passphrase else None
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return bytes(key.private_bytes(*form, kind or serialization.NoEncryption()))


ED25519 = ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (written(ED25519), "does not accept the key"),
        # Its refusal hides behind paramiko's next try, to read it as a key of another kind.
        (written(RSA), "does not accept the key"),
        (written(ED25519, b"secret"), "has a passphrase"),
        (b"", "No such file"),
    ],
    ids=["refused", "rsa", "passphrase", "missing"],
)
def test_who_answers_and_lets_nobody_in_is_not_silent(
    refusing: Node, paths: ClusterPaths, tmp_path: Path, key: bytes, said: str
) -> None:
    identity = tmp_path / "key"
    if key:
        identity.write_bytes(key)
    with SSH(refusing, paths, str(identity)) as made, pytest.raises(LoginRefused) as caught:
        made.run("true")
    assert said in caught.value.message
    assert not caught.value.is_silence


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("no route to host"), Unreachable),
        (paramiko.PasswordRequiredException("encrypted"), LoginRefused),
        (paramiko.AuthenticationException("no"), LoginRefused),
        (paramiko.ssh_exception.IncompatiblePeer("no common cipher"), LoginRefused),
    ],
)
def test_what_a_hop_says_is_no_word_about_the_node_behind_it(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Unreachable]
) -> None:
    hops = [Hop(address=name, user="me", host_keys=()) for name in ("gate", "inner")]
    made = SSH(NODE.model_copy(update={"via": tuple(hops)}), paths)
    assert made._jump is not None
    assert made._jump._jump is not None
    failing = Refusing([error])
    monkeypatch.setattr(made._jump._jump, "_connect", failing)
    with pytest.raises(kind, match="gate") as caught:
        made.run("true")
    assert type(caught.value) is kind
    assert (caught.value.on_the_way, caught.value.is_silence) == (True, False)
    assert failing.calls == 3, "what fails may pass"
