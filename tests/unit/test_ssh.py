"""Commands over SSH: quoting, results, errors, and what is retried."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any, Self

import paramiko
import pytest

from gpubed import ssh
from gpubed.allocation import Allocation, Network, Node
from gpubed.paths import ClusterPaths, Project
from gpubed.ssh import SSH, CommandFailed, CommandTimedOut, Unreachable

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
    assert channel.commands == ["ls 'a b; rm -rf /' /x"]


def test_without_arguments_percent_signs_stay(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel()
    connection(channel, paths, monkeypatch).run("date +%s")
    assert channel.commands == ["date +%s"]


def test_result_has_both_streams_and_is_frozen(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel(b"out\xff", b"err", 3)
    result = connection(channel, paths, monkeypatch).run("x", check=False, stdin="hello")
    assert (result.stdout, result.stderr, result.exit_code) == ("out�", "err", 3)
    assert channel.received == b"hello"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.exit_code = 0  # type: ignore[misc]


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


def test_end_without_exit_code_is_named(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed, match="killed, or the connection was lost"):
        connection(Channel(code=-1), paths, monkeypatch).run("x")


def test_slow_command_is_cut_off_with_what_it_said(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel(b"so far", hangs=True)
    with pytest.raises(CommandTimedOut) as caught:
        connection(channel, paths, monkeypatch).run("sleep 9", timeout=0.05)
    assert caught.value.result.stdout == "so far"
    assert "cut off" in caught.value.message


class Refusing:
    """Stands for the opening of a connection that fails a few times."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        raise self.errors[min(self.calls, len(self.errors)) - 1]


def test_connecting_is_retried_then_unreachable(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing([OSError("no route to host")])
    made = SSH(NODE, paths)
    monkeypatch.setattr(made, "_connect", refusing)
    with pytest.raises(Unreachable, match="no route to host"):
        made.run("true")
    assert refusing.calls == 3


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
    for part in ("node-0 (192.0.2.1)", own.fingerprint, seen.fingerprint, way_on, "do not go on"):
        assert part in str(caught.value)


def test_missing_private_key_is_named(paths: ClusterPaths) -> None:
    with pytest.raises(ssh.GpubedError, match="id_ed25519 cannot be read"):
        SSH(NODE, paths).run("true")


def test_allocation_stands_for_its_head(paths: ClusterPaths) -> None:
    worker = NODE.model_copy(update={"name": "node-1", "role": "worker"})
    allocation = Allocation(
        cluster="lab",
        uuid="u",
        backend="local",
        nodes=(NODE, worker),
        control=Network(subnet="192.0.2.0/24"),
        experiment=None,
    )
    assert SSH(allocation, paths).node is NODE
