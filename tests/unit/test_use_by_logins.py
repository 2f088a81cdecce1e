"""Copies over SSH, however slow, are a use of a node; a login that somebody forgot is none.

The reader and the judging are the node's own; processes are those of a folder that is as /proc.
"""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from support.logins import Proc, in_place, read
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


@pytest.mark.process
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


class Collected:
    """A node from which a controller copies results in a login, 50 MB each second.

    What is read is a folder as /proc; the program, its reader and the judging are the node's own.
    """

    def __init__(self, use, proc, monkeypatch):
        self._use, self._proc = use, proc
        self._at, self._carried, self._network = 100.0, 0, use.program.STATE.parent / "net"
        terminals = use.program.STATE.parent / "pts"
        terminals.mkdir()
        monkeypatch.setattr(use.terminals, "FOLDER", terminals)
        monkeypatch.setattr(use.machine, "NETWORK", self._network)
        clock = SimpleNamespace(clock_gettime=lambda _: self._at, CLOCK_BOOTTIME=None)
        monkeypatch.setattr(use.machine, "time", clock)
        for module in (use.machine, use.program):
            monkeypatch.setattr(module, "os", SimpleNamespace(getpid=lambda: self._asks))
        proc.start(990, of=602, command="gpubed-use")  # of the timer, and not in a login
        proc.login(ME, "sftp-server")
        self.later("look")
        self.later("look")

    def later(self, verb, copied=0, network=0):
        """Let a minute pass, in which the login copies so much; return what is known then."""
        self._at += 60
        self._carried += copied
        self._sent = getattr(self, "_sent", 0) + copied + network
        self._network.write_text(f"\n\neth0: 0 0 0 0 0 0 0 0 {self._sent}\n")
        if (self._proc.folder / str(ME)).exists():
            self._proc.carry(ME, self._carried)
            self._proc.compute(ME, self._carried / 10**8)
        self._asks = 990
        if verb in ("own", "disown"):
            self._asks = 901
            self._proc.start(self._asks, of=ME, command="gpubed-use")
        with in_place(self._use.processes, self._proc.folder):
            assert self._use.program.main(verb) == 0
        self._proc.end(901)
        return self._use.program.told(self._use.program._read())


@pytest.fixture
def collected(use, proc, monkeypatch):
    return Collected(use, proc, monkeypatch)


A_MINUTE = 60 * 50_000_000


def test_what_gpubed_collects_is_no_use_and_what_follows_is(collected):
    """A release was put off: its own copy was taken for somebody's, each time."""
    idle_s = collected.later("own")["idle_s"]
    for verb in ("look", "look", "disown"):
        found = collected.later(verb, copied=A_MINUTE)
        idle_s += 60
        assert found["idle_s"] == idle_s, found["last"]
    assert collected.later("look")["idle_s"] == idle_s + 60
    found = collected.later("look", copied=A_MINUTE)
    assert (found["idle_s"], found["last"]["what"]) == (0, "programs compute")


def test_who_copies_meanwhile_in_a_login_of_the_same_account_is_seen(proc, collected):
    collected.later("own")
    proc.login(1000, "rsync")
    proc.carry(1000, 60 * 25_000)
    found = collected.later("look", copied=A_MINUTE)
    assert (found["idle_s"], found["last"]["what"]) == (0, WHAT)


def test_whose_program_computes_meanwhile_is_seen(proc, collected):
    proc.login(1000, "make")
    collected.later("own")
    proc.compute(1000, 30.0)
    found = collected.later("look", copied=A_MINUTE)
    assert (found["idle_s"], found["last"]["what"]) == (0, "programs compute")


def test_a_controller_that_was_killed_hides_nothing_any_more(proc, collected):
    """Its login has ended, and with it what was gpubed's own."""
    collected.later("own")
    proc.logout(ME)
    found = collected.later("look", network=A_MINUTE)
    assert (found["idle_s"], found["last"]["what"]) == (0, "the network carries data")


def test_who_says_so_outside_a_login_hides_nothing(use, collected, monkeypatch):
    monkeypatch.setattr(use.program, "logins", SimpleNamespace(of=lambda *_: ""))
    collected.later("own")
    assert collected.later("look", network=A_MINUTE)["idle_s"] == 0
