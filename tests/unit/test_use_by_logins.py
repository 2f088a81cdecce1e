"""Copies over SSH, however slow, are a use of a node; a login that somebody forgot is none.

The reader and the judging are the node's own; processes are those of a folder that is as /proc.
"""

import os

import pytest

from support.logins import Proc, in_place, read
from support.node_use import HOUR, QUIET, fold, use

__all__ = ["use"]
ME, WHAT = 900, "a copy over SSH"


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path / "proc")


@pytest.fixture
def look(use, proc):
    """A function that looks a minute later, at a login that has carried so much by then."""
    at, record = 100.0, use.judging.first()

    def looked(carried=0, later=60.0):
        nonlocal at, record
        at += later
        if (proc.folder / str(ME)).exists():
            proc.carry(ME, carried)
        seen = {**QUIET, "uptime": at, "logins": read(use, proc.folder)}
        record = use.judging.fold(record, seen, HOUR)
        return record

    looked()
    return looked


@pytest.mark.parametrize("command", ["rsync", "scp", "sftp-server", "tar", "git-receive-pack"])
@pytest.mark.parametrize("rate", [25_000, 750_000])
def test_a_slow_copy_is_a_use_for_as_long_as_it_lasts(use, proc, look, command, rate):
    proc.login(ME, command)
    for minute in range(1, 4):
        record = look(rate * 60 * minute)
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


def test_a_login_that_cannot_be_read_counts_as_a_copy_from_the_second_look_on(proc, look):
    """Root of a confined container may not read what the server of a login wrote."""
    proc.login(ME, "sftp-server")
    assert look(None)["idle_s"] == 60
    assert look(None)["last"]["what"] == WHAT


def test_logins_of_gpubed_itself_are_no_use_and_others_beside_them_are(use):
    def found(own, **others):
        mine = {"1 1": ["me", 10**9], **others}
        return fold(use, {"logins": {}}, {"logins": mine, "own": own})

    assert found(["1 1"])["idle_s"] == 60
    assert found([])["idle_s"] == 0
    other = found(["1 1"], other=["bob", 10**9])
    assert other["last"] == {"who": "bob", "what": WHAT}


def test_a_login_says_itself_that_it_is_gpubeds_own(use, proc, monkeypatch):
    """The program is asked in the login; STAND-INs are the number of the process and its look."""
    proc.login(ME, "sudo")
    proc.start(ME + 1, of=ME, command="gpubed-use")
    monkeypatch.setattr(use.program.os, "getpid", lambda: ME + 1)
    monkeypatch.setattr(use.machine, "see", lambda *_: QUIET)
    with in_place(use.processes, proc.folder):
        use.program.main("own")
        assert use.program.OWN.read_text() == "899 899\n"
        use.program.main("disown")
        assert use.program.OWN.read_text() == ""
