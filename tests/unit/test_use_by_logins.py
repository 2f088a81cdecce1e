"""Copies over SSH, however slow, are a use of a node; a login that somebody forgot is none.

The reader and the judging are the node's own; processes are those of a folder that is as /proc.
"""

import os
import signal
import subprocess

import pytest

from support.logins import Proc, read
from support.node_use import HOUR, QUIET, use

__all__ = ["use"]
ME, WHAT = 900, "a copy over SSH"


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path / "proc")


@pytest.fixture
def look(use, proc):
    """A function that looks a minute later, at a login that has carried so much by then."""
    at, record = 100.0, use.judging.first()

    def looked(carried=0, network=0, later=60.0):
        nonlocal at, record
        at += later
        if (proc.folder / str(ME)).exists():
            proc.carry(ME, carried)
        seen = {**QUIET, "uptime": at, "logins": read(use, proc.folder), "network": network}
        record = use.judging.fold(record, seen, HOUR)
        return record

    looked()
    return looked


@pytest.mark.parametrize("command", ["rsync", "scp", "sftp-server", "tar", "git-receive-pack"])
@pytest.mark.parametrize("rate", [25_000, 750_000])
def test_a_slow_copy_is_a_use_for_as_long_as_it_lasts(use, proc, look, command, rate):
    proc.login(ME, command)
    for minute in range(1, 4):
        record = look(rate * 60 * minute, network=rate * 60 * minute)
        assert record["idle_s"] == 0
        assert record["last"] == {"who": use.processes.user_of(os.getuid()), "what": WHAT}
    proc.logout(ME)
    assert look()["idle_s"] == 60


@pytest.mark.parametrize("command", ["sftp-server", "rsync", "bash", "node"])
def test_a_login_that_was_forgotten_is_none(proc, look, command):
    """It carries what tells both ends that the other is there, and what an editor says each 5 s."""
    proc.login(ME, command)
    look(10**9)
    for minute in range(1, 4):
        assert look(10**9 + 1000 * 60 * minute)["idle_s"] == 60 * minute


def test_what_is_shown_on_a_terminal_is_none(proc, look):
    """Whoever types is seen by the terminal; `htop` shows something for ever."""
    proc.login(ME, "bash", terminal=True)
    assert look(10**8)["idle_s"] == 60


def test_forwarded_ports_are_none(use, proc, look):
    """As those of `gpubed open`, behind which a page of a browser may ask again and again."""
    proc.login(ME, None)
    proc.carry(ME, 10**8)
    assert read(use, proc.folder) == {}


def test_who_asks_is_no_use(use, proc):
    proc.login(ME, "sudo")
    proc.login(1000, "rsync")
    assert set(read(use, proc.folder, asks=ME)) == {"999 999"}


def test_a_short_login_of_a_controller_is_none(proc, look):
    """A look of the node's own meets them now and then."""
    look()
    proc.login(ME, "bash")
    assert look(200_000)["idle_s"] == 120


def test_the_servers_own_sftp_is_one_of_its_commands(use, proc):
    proc.login(ME, "sshd", title="sshd: me@internal-sftp")
    proc.login(1000, "sshd", title="sshd: me@notty")
    if os.geteuid() == 0:
        for number in (ME, 1000):
            os.chown(proc.folder / str(number), 1000, 1000)
    assert set(read(use, proc.folder)) == {"899 899"}


def test_looks_that_follow_each_other_closely_hide_no_copy(proc, look):
    proc.login(ME, "rsync")
    for number in range(1, 20):
        record = look(25_000 * 5 * number, later=5.0)
    assert record["last"]["what"] == WHAT
    assert record["idle_s"] < 30


@pytest.mark.parametrize(("rate", "idle_s"), [(40_000, 60), (200_000, 0)])
def test_where_a_login_may_not_tell_the_network_does(proc, look, rate, idle_s):
    """Root of a confined container may not read what the server of a login wrote."""
    proc.login(ME, "sftp-server")
    assert look(None, network=60 * rate)["idle_s"] == idle_s


def test_without_a_login_that_network_is_no_copy(look):
    assert look(network=60 * 200_000)["idle_s"] == 60


def test_the_kernels_own_count_is_read(use, tmp_path):
    """A process of this machine, by the server's name, with a command."""
    server = tmp_path / "sshd"
    server.write_text("#!/bin/sh\nsleep 60 &\nprintf %0200000d 7\necho\nwait\n")
    server.chmod(0o755)
    with subprocess.Popen([server], stdout=subprocess.PIPE, start_new_session=True) as started:
        try:
            assert len(started.stdout.readline()) == 200_001
            every = use.processes.every()
            [command] = [number for number, one in every.items() if one.parent == started.pid]
            [(_, carried)] = use.logins.carried(every, [command]).values()
        finally:
            os.killpg(started.pid, signal.SIGKILL)
    assert 200_000 <= carried < 300_000
