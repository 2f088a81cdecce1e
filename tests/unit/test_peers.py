"""Who comes in on loopback, as the kernel tells it."""

import os
import pwd
import socket
import subprocess

import pytest

from gpubed.access import browser

ANOTHER = 4_000_000


@pytest.fixture
def door():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def met(door, client):
    """Return who the other end of a client's connection belongs to."""
    ours, there = door.accept()
    with ours, client:
        return browser.stranger(there, ours.getsockname())


def test_our_own_programs_are_no_strangers(door):
    assert met(door, socket.create_connection(door.getsockname())) == ""


def test_others_are_named(door, monkeypatch):
    """This process plays both ends: another user is what it is not."""
    name = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr("os.getuid", lambda: ANOTHER)
    assert met(door, socket.create_connection(door.getsockname())) == name


def test_ipv4_spoken_through_ipv6_is_known(door, monkeypatch):
    try:
        client = socket.socket(socket.AF_INET6)
        client.connect(("::ffff:127.0.0.1", door.getsockname()[1]))
    except OSError:
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr("os.getuid", lambda: ANOTHER)
    assert met(door, client) not in ("", "an unknown user")


def test_who_has_left_is_nobody(door):
    """The kernel says root of a socket that its process has closed."""
    client = socket.create_connection(door.getsockname())
    client.close()
    assert met(door, client) == "an unknown user"


@pytest.mark.parametrize("system", ["macOS", "Windows around it"])
def test_where_the_system_does_not_tell_nobody_is_refused(door, monkeypatch, tmp_path, system):
    monkeypatch.setattr("os.getuid", lambda: ANOTHER)
    if system == "macOS":
        monkeypatch.setattr(browser, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    else:
        monkeypatch.setattr("platform.release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    assert met(door, socket.create_connection(door.getsockname())) == ""


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="it becomes another user")
def test_another_user_is_one(door):
    words = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{door.getsockname()[1]}; read -u 3"]
    with subprocess.Popen(words, user="nobody", stderr=subprocess.DEVNULL):
        ours, there = door.accept()
        with ours:
            assert browser.stranger(there, ours.getsockname()) == "nobody"
