"""Copies over SSH, however slow, are a use of a node; a login that somebody forgot is none.

The reader and the judging are the node's own; processes are those of a folder that is as /proc.
"""

import os

import pytest

from support.logins import Proc, read
from support.node_use import HOUR, QUIET, fold

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


def test_forwarded_ports_are_none(use, proc, look):
    """As those of `gpubed open`, behind which a page of a browser may ask again and again."""
    proc.login(ME, None)
    proc.carry(ME, 10**8)
    assert read(use, proc.folder) == {}


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
