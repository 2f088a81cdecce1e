"""Two nodes after role firewall."""

import socket

import pytest

ELSEWHERE = 9797


def _answers(host, address, port):
    """Say whether a port of a node answers to this machine, outside of the cluster."""
    with socket.socket() as client:
        client.settimeout(3)
        return client.connect_ex((address, port)) == 0


@pytest.fixture
def control_address(host):
    own = host.check_output("hostname")
    line = host.check_output(f"grep ' {own}.control$' /etc/hosts")
    return line.split()[0]


@pytest.fixture
def listener(host):
    """A service on a port that nobody opened."""
    host.check_output(
        f"systemd-run --collect --unit=listener python3 -m http.server {ELSEWHERE}"
        f" && timeout 10 sh -c 'until ss -tln | grep -q :{ELSEWHERE}; do sleep 0.2; done'"
    )
    yield ELSEWHERE
    host.check_output("systemctl stop listener.service")


def test_a_port_that_was_not_opened_is_closed(host, control_address, listener):
    assert not _answers(host, control_address, listener)


def test_ssh_is_open(host, control_address):
    assert _answers(host, control_address, 22)


def test_nodes_reach_each_other_on_every_port(host, listener):
    own = host.check_output("hostname")
    other = {"node-0": "node-1", "node-1": "node-0"}[own]
    ask = f"runuser -u gpubed -- ssh -o BatchMode=yes {other} curl -sf -o /dev/null http://{own}:{listener}"
    assert host.run(ask).rc == 0


def test_names_are_still_resolved(host):
    assert host.run("getent hosts localhost").rc == 0


def test_other_tables_are_left_alone(host):
    tables = host.check_output("nft list tables").splitlines()
    docker = "127.0.0.11" in host.file("/etc/resolv.conf").content_string
    assert ("table ip nat" in tables) or not docker


def test_ipv6_is_filtered_too(host):
    assert "table inet gpubed" in host.check_output("nft list tables").splitlines()


def test_rules_are_the_proven_ones(host):
    assert host.run("gpubed-firewall status").rc == 0


def test_rules_come_back_after_they_were_flushed(host):
    host.check_output("nft delete table inet gpubed && systemctl restart gpubed-firewall")
    assert host.run("gpubed-firewall status").rc == 0


@pytest.fixture
def nftables(host):
    """Its unit, which flushes all tables; here ours alone, since Docker's would not come back."""
    flush, changed = "/run/flush.nft", "/run/systemd/system/nftables.service.d"
    lines = [
        f"Exec{verb}=\nExec{verb}=/usr/sbin/nft -f {flush}" for verb in ("Start", "Reload", "Stop")
    ]
    host.check_output(f"printf 'table inet gpubed\ndelete table inet gpubed\n' >{flush}")
    host.check_output(f"mkdir -p {changed}")
    host.check_output("printf %s >%s/00-test.conf", "\n".join(["[Service]", *lines, ""]), changed)
    host.check_output("systemctl daemon-reload && systemctl start nftables")
    yield
    host.check_output(f"systemctl stop nftables && rm -r {changed}")
    host.check_output("systemctl daemon-reload && systemctl start gpubed-firewall")


@pytest.mark.usefixtures("nftables")
@pytest.mark.parametrize("verb", ["start", "reload", "restart"])
def test_rules_outlive_what_an_owner_does_with_nftables(host, verb):
    host.check_output(f"systemctl {verb} nftables")
    assert host.run("gpubed-firewall status").rc == 0


def test_rules_are_loaded_at_boot(host):
    assert host.service("gpubed-firewall").is_enabled


def test_rules_that_drop_ssh_are_taken_back(host, control_address):
    script = (
        "cp /etc/gpubed/firewall/rules.nft /root/rules.nft"
        " && sed -i '/tcp dport/d' /etc/gpubed/firewall/rules.nft"
        " && gpubed-firewall try 5; mv /root/rules.nft /etc/gpubed/firewall/rules.nft"
    )
    host.check_output(script)
    locked_out = not _answers(host, control_address, 22)
    host.check_output(
        "timeout 20 sh -c 'while systemctl --quiet is-active gpubed-firewall-rollback.timer;"
        " do sleep 0.2; done; until gpubed-firewall status; do sleep 0.2; done'"
    )
    assert (locked_out, _answers(host, control_address, 22)) == (True, True)


def test_rules_taken_back_cannot_be_kept(host):
    assert host.run("gpubed-firewall keep").rc == 1
