"""How an own host becomes a cluster's: the mark first, then the key, one cluster at a time.

The programs of the host are STAND-INS where they cannot run; the script is the one that runs there.
"""

import fcntl
import json
import os
import threading

import pytest

from gpubed.backends.static import membership
from gpubed.core.errors import GpubedError
from gpubed.nodes.ssh import CommandFailed
from support.shell_host import ShellHost

pytestmark = pytest.mark.process

KEY = "ssh-ed25519 BBBB"
OWNERS = "ssh-ed25519 AAAA owner"


@pytest.fixture
def host(tmp_path):
    return ShellHost(tmp_path)


def mark(host):
    return host.etc / "gpubed/owner.json"


def keys(host):
    return host.home / ".ssh/authorized_keys"


def owner(uuid):
    return {"uuid": uuid, "cluster": "lab", "node": "node-0", "id": "node-0-1"}


def test_it_is_marked_and_lets_the_cluster_in(host):
    membership.admit(host, owner("a1"), KEY)
    assert json.loads(mark(host).read_text()) == owner("a1")
    assert keys(host).read_text() == f"{KEY} gpubed:a1\n"
    assert keys(host).stat().st_mode & 0o777 == 0o600
    assert keys(host).parent.stat().st_mode & 0o777 == 0o700


def test_a_second_time_exchanges_the_key_and_leaves_others_whole(host):
    keys(host).parent.mkdir(mode=0o755)
    keys(host).write_text(OWNERS)  # its line has no end
    keys(host).chmod(0o664)
    membership.admit(host, owner("a1"), "ssh-ed25519 OLD")
    membership.admit(host, owner("a1"), KEY)
    assert keys(host).read_text().splitlines() == [OWNERS, f"{KEY} gpubed:a1"]
    assert keys(host).stat().st_mode & 0o777 == 0o644, "sshd believes no file that others write"
    assert keys(host).parent.stat().st_mode & 0o777 == 0o755, "the owner's folder is the owner's"


def test_what_its_owner_used_is_written_down_once(host):
    membership.admit(host, owner("a1"), KEY, "forward tcp:22 tcp:8080")
    membership.admit(host, owner("a1"), KEY)  # other services listen by now
    ports = host.etc / "gpubed/owner.ports"
    assert ports.read_text() == "forward tcp:22 tcp:8080\n"
    membership.release(host, "a1", stays=True)
    assert ports.exists(), "it becomes another node"
    membership.release(host, "a1")
    assert not ports.exists()


def test_the_mark_comes_before_the_key(host):
    # Cut short where the key is about to be written.
    host.program("sed", '[ "$1" != -i ] || exit 1; PATH=/usr/bin:/bin exec sed "$@"')
    with pytest.raises(CommandFailed):
        membership.admit(host, owner("a1"), KEY)
    assert json.loads(mark(host).read_text())["uuid"] == "a1"
    assert "gpubed:" not in keys(host).read_text()


def test_the_mark_of_another_cluster_written_meanwhile_is_refused(host):
    membership.admit(host, owner("b2"), "ssh-ed25519 THEIRS")
    with pytest.raises(GpubedError, match="node of another cluster meanwhile") as refused:
        membership.admit(host, owner("a1"), KEY)
    assert "node-0 (192.0.2.7)" in refused.value.message
    assert json.loads(mark(host).read_text())["uuid"] == "b2"
    assert keys(host).read_text() == "ssh-ed25519 THEIRS gpubed:b2\n"


def test_of_two_at_once_one_wins(host):
    lost = []

    def admit(uuid):
        try:
            membership.admit(host, owner(uuid), KEY)
        except GpubedError:
            lost.append(uuid)

    both = [threading.Thread(target=admit, args=(uuid,)) for uuid in ("a1", "b2")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    [winner] = {"a1", "b2"} - set(lost)
    assert json.loads(mark(host).read_text())["uuid"] == winner
    assert keys(host).read_text() == f"{KEY} gpubed:{winner}\n"


def test_a_host_that_somebody_keeps_busy_is_refused_in_words(host, monkeypatch):
    monkeypatch.setattr(membership, "_PATIENCE", 0)
    held = os.open(host.etc / "gpubed", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(GpubedError, match="is busy"):
        membership.admit(host, owner("a1"), KEY)
    os.close(held)
    assert not mark(host).exists()


def test_keys_that_are_a_link_stay_one(host):
    kept = host.etc / "ssh/keys/me"
    kept.parent.mkdir(parents=True)
    kept.write_text(f"{OWNERS}\nssh-ed25519 OLD gpubed:a1\n")
    keys(host).parent.mkdir()
    keys(host).symlink_to(kept)
    membership.admit(host, owner("a1"), KEY)
    assert keys(host).is_symlink()
    assert kept.read_text().splitlines() == [OWNERS, f"{KEY} gpubed:a1"]
