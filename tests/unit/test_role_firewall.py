"""The loader of role firewall: what it takes back, and when; programs of the host are STAND-INS."""

import pytest

from support import machines, role_variables
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


@pytest.mark.parametrize("owners", ["", "tcp:8080 tcp:22 udp:68", "forward tcp:22"])
def test_what_the_owner_used_stays_open(owners):
    """`owner.ports` is written when a host becomes a node; nodes made for a cluster have none."""
    rules = role_variables.template(
        "firewall",
        "rules.nft.j2",
        "debian-12",
        ansible_managed="",
        gpubed_nodes=[{"control_address": "192.0.2.7", "experiment_address": None}],
        gpubed_networks={"experiment": None},
        __firewall_sshd={"stdout": "port 22\n"},
        __firewall_connection={},
        __firewall_owners={"stdout": owners},
    )
    lines = [line.strip() for line in rules.splitlines()]
    assert ("meta l4proto != { 6, 17 } accept" in lines) == bool(owners)
    assert ("tcp dport { 22, 8080 } accept" in lines) == ("8080" in owners)
    assert ("udp dport { 68 } accept" in lines) == ("udp" in owners)
    assert ("chain forward {" in lines) == ("forward" not in owners)
    assert rules.count("{") == rules.count("}")
