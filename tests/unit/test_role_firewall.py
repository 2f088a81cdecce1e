"""The loader of role firewall: what it takes back, and when; programs of the host are STAND-INS."""

import pytest

from support import machines
from support.shell_host import ShellHost

pytestmark = pytest.mark.process

PROGRAM = (machines.ROOT / "roles/firewall/files/gpubed-firewall").read_text()


@pytest.fixture
def host(tmp_path):
    """A host with proven rules; a file stands for a timer that is armed."""
    there, armed = ShellHost(tmp_path), tmp_path / "armed"
    folder = there.etc / "gpubed/firewall"
    folder.mkdir()
    for name in ("rules.nft", "proven.nft"):
        (folder / name).write_text("table inet gpubed {}\n")
    there.program("nft", "[ $1 != --numeric ] || echo 'table inet gpubed {}'")
    there.program("systemd-run", f"touch {armed}")
    there.program(
        "systemctl",
        f"""case $* in
stop*gpubed-firewall-rollback.timer*) rm -f {armed} ;;
*is-active*) [ -e {armed} ] ;;
esac""",
    )
    there.armed = armed
    return there


def call(host, *words):
    return host.sh(f"set -- {' '.join(words)}\n{PROGRAM}")


def test_rules_that_nobody_keeps_are_taken_back(host):
    assert call(host, "try", "60").returncode == 0
    assert host.armed.exists()


def test_what_is_stopped_while_rules_are_tried_stays_stopped(host):
    """As where an `up` was killed, and a `down` lets the host go before the time is over."""
    call(host, "try", "60")
    assert call(host, "stop").returncode == 0
    assert not host.armed.exists()
    # Neither does a roll-back that has begun come after it.
    [*_, stopped, _, removed] = host.called
    assert stopped.endswith("gpubed-firewall-rollback.timer gpubed-firewall-rollback.service")
    assert removed == "nft --file -"


def test_rules_that_were_tried_when_it_was_stopped_are_not_kept(host):
    call(host, "try", "60")
    call(host, "stop")
    assert "before they were proved good" in call(host, "keep").stderr


def test_rules_that_proved_good_are_kept(host):
    call(host, "try", "60")
    assert call(host, "keep").returncode == 0
    assert not host.armed.exists()
