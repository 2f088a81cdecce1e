"""The ways to break a cluster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.faults.play import Fault, Play
from support.impostor import SWAP

_IN_NODE = ("exec", "node-1", "sh", "-c")
_MAY_MOUNT = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE"),
    *("--security-opt", "apparmor=unconfined", "--security-opt", "seccomp=unconfined"),
)
Damage = Callable[[Play], Iterator[None]]


def _docker(*words: str) -> Damage:
    def damage(play: Play) -> Iterator[None]:
        play.docker(*words)
        yield

    return damage


def _cut(purpose: str) -> Damage:
    def damage(play: Play) -> Iterator[None]:
        play.docker("network", "disconnect", play.network(purpose), "node-1")
        yield

    return damage


def _renamed(play: Play) -> Iterator[None]:
    networks = [play.network(purpose) for purpose in ("experiment", "control")]
    addresses = [_address(play, network) for network in networks]
    for network in networks:
        play.docker("network", "disconnect", network, "node-1")
    for network, address in zip(networks, addresses, strict=True):
        play.docker("network", "connect", "--ip", address, network, "node-1")
    yield


def _address(play: Play, network: str) -> str:
    asked = f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}'
    return play.docker("inspect", "--format", asked, "node-1")


def _truncated(find: Callable[[Play], Path]) -> Damage:
    def damage(play: Play) -> Iterator[None]:
        path = find(play)
        content = path.read_bytes() if path.exists() else b'{"cluster": "x"'
        path.write_bytes(content[: len(content) // 2])
        yield

    return damage


def _state(play: Play) -> Path:
    stacks = play.cluster.root / ".gpubed/pulumi/.pulumi/stacks/gpubed"
    return stacks / f"{play.cluster.name}.json"


def _key_lost(play: Play) -> Iterator[None]:
    play.paths.private_key.unlink()
    yield


def _state_lost(play: Play) -> Iterator[None]:
    shutil.rmtree(play.cluster.root / ".gpubed")
    yield


def _busy(play: Play) -> Iterator[None]:
    play.docker("rm", "--force", "node-1")
    other = play.cluster.start("up", play.cluster.name, "--refresh")
    lock = play.paths.state / "lock"
    while not (lock.exists() and f'"pid": {other.pid}' in lock.read_text()):
        time.sleep(0.05)
    yield
    other.wait()


# Docker's storage cannot limit a node's root here, so a file system of its own stands for it.
_QUOTA = """
set -e
mount -t tmpfs -o size=$(($(du --summarize -m /var/log | cut -f 1) + 32))m disk /mnt
cp --archive /var/log/. /mnt
mount --move /mnt /var/log
dd if=/dev/zero of=/var/log/endless bs=1M || true
"""


def _disk_full(play: Play) -> Iterator[None]:
    _mounting(play, _QUOTA)
    yield
    _mounting(play, "rm /var/log/endless && umount --lazy /var/log")


def _mounting(play: Play, script: str) -> None:
    of = ("inspect", "--format", "{{.Id}} {{.Image}}", "node-1")
    node, image = play.docker(*of).split()
    enter = ("nsenter", "--target", "1", "--mount", "sh", "-c", script)
    play.docker("run", "--rm", "--pid", f"container:{node}", *_MAY_MOUNT, image, *enter)


FAULTS = (
    Fault("killed", "a node is killed", _docker("kill", "node-1")),
    Fault("removed", "a node is removed", _docker("rm", "--force", "node-1")),
    Fault("paused", "a node is paused", _docker("pause", "node-1")),
    Fault(
        "sshd", "sshd of a node is stopped", _docker("exec", "node-1", "systemctl", "stop", "ssh")
    ),
    Fault("experiment", "a node's experiment network is cut", _cut("experiment")),
    Fault("control", "a node's control network is cut", _cut("control")),
    Fault("renamed", "a node's networks are cut and back under other names", _renamed),
    Fault("host-key", "a node's host key is swapped", _docker(*_IN_NODE, SWAP)),
    Fault("state", "the state is cut short", _truncated(_state)),
    Fault("allocation", "the allocation is cut short", _truncated(lambda p: p.paths.allocation)),
    Fault(
        "verification", "the verification is cut short", _truncated(lambda p: p.paths.verification)
    ),
    Fault("key", "the cluster's SSH key is lost", _key_lost),
    Fault("state-lost", "the whole state is lost", _state_lost),
    Fault("disk-full", "a node's disk is full, with a log", _disk_full),
    Fault("two-runs", "another run has the cluster", _busy, "gpubed up lab --refresh"),
)
