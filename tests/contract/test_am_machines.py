"""The GENI site for tests with real nodes: what it says of them is so, and they go."""

import os
import subprocess
import time

import pytest
from lxml import etree

from gpubed.backends.local import daemon, environment
from gpubed.testbeds import registry
from support.am import AmServer, Limits, Site
from support.am.machines import Machines
from support.am.request import tag
from support.am.witness import RSPEC_VERSION, Witness, rspec

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]
RATE = "".join(
    f'<property source_id="{name}:if0" dest_id="{other}:if0" capacity="50000"/>'
    for name, other in (("w1", "w2"), ("w2", "w1"))
)
SERVICES = (
    '<services><execute shell="sh" command="sudo touch /var/tmp/as-root &amp;&amp; id -un"/>'
    "</services></node>"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    refused = [found for found in registry.backend("local").doctor() if not found.ok]
    if refused:
        pytest.skip(f"no real nodes here: {refused[0].message}")
    folder, site = tmp_path_factory.mktemp("am"), Site()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUBED_CACHE", str(folder / "cache"))
        nodes = Machines(site, control="10.127.211.0/24")
        with AmServer(folder, site=site, nodes=nodes, limits=Limits(delete=0)) as made:
            made.user("alice", passphrase=None)
            yield made
        assert left(made) == []


@pytest.fixture(scope="module")
def cluster(server):
    """Two started nodes: the slice, its credential and the nodes of the manifest."""
    alice = Witness(server, server.users["alice"])
    request = rspec("w1", "w2", lan=RATE).replace("</node>", SERVICES, 1)
    made, credential = alice.up("real", request)
    wait_until_ready(alice, made, credential)
    manifest = alice.am.Describe([made], credential, RSPEC_VERSION).value["geni_rspec"]
    nodes = etree.fromstring(manifest.encode()).findall(tag("node"))
    return alice, made, credential, {node.get("client_id"): node for node in nodes}


def left(server):
    """Returns the names of all that Docker has of the server."""
    client, mine = daemon.client(), {"label": f"gpubed.cluster={server.nodes.uuid}"}
    things = client.containers.list(all=True, filters=mine)
    things += [*client.networks.list(filters=mine), *client.volumes.list(filters=mine)]
    return [thing.name for thing in things]


def wait_until_ready(alice, made, credential):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        slivers = alice.am.Status([made], credential, {}).value["geni_slivers"]
        if {s["geni_operational_status"] for s in slivers} <= {"geni_ready", "geni_failed"}:
            assert [s["geni_error"] for s in slivers] == [""] * len(slivers)
            return
        time.sleep(0.3)
    raise AssertionError(slivers)


def run(cluster, name, command, user=None):
    """Runs a command on a node as the manifest says to log in; returns what it printed."""
    alice, *_, nodes = cluster
    login = nodes[name].find(f"{tag('services')}/{tag('login')}")
    where = f"{user or login.get('username')}@{login.get('hostname')}"
    options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    key = alice.login.pem
    # The file is also the key: ssh reads the first block, and the rest is not for it.
    arguments = [part for option in options for part in ("-o", option)]
    arguments += ["-o", "LogLevel=ERROR", "-i", str(key), "-p", login.get("port"), where]
    done = subprocess.run(
        ["ssh", *arguments, command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SSH_AUTH_SOCK": ""},
    )
    return done.returncode, done.stdout.strip() or done.stderr.strip()


def test_the_user_logs_in_and_may_become_root(cluster):
    assert run(cluster, "w1", "hostname; id -un; sudo id -un") == (0, "w1\nalice\nroot")


def test_nobody_else_does(cluster):
    code, output = run(cluster, "w1", "true", user="gpubed")
    assert code == 255
    assert "Permission denied" in output


def test_the_manifest_s_addresses_are_those_of_the_interfaces(cluster):
    for name, node in cluster[3].items():
        interface = node.find(tag("interface"))
        _, found = run(cluster, name, "ip -br -4 address show to 192.168.77.0/24")
        assert f"{interface.find(tag('ip')).get('address')}/24" in found
        device = found.split("@")[0]
        _, mac = run(cluster, name, f"cat /sys/class/net/{device}/address")
        assert mac.replace(":", "") == interface.get("mac_address")


def test_the_link_is_shaped_to_its_capacity_and_carries(cluster):
    assert run(cluster, "w1", "ping -c 2 -W 2 192.168.77.2 > /dev/null") == (0, "")
    _, found = run(cluster, "w1", "sudo tc class show dev eth1")
    assert "rate 50Mbit" in found


def test_the_project_s_folder_is_shared_and_the_user_may_write(cluster):
    assert run(cluster, "w1", "echo here > /proj/testproj/file") == (0, "")
    assert run(cluster, "w2", "cat /proj/testproj/file") == (0, "here")


def test_what_the_request_wants_to_be_run_is_run_as_the_user(cluster):
    wait = "for i in $(seq 50); do [ -s /var/tmp/startup-1.status ] && break; sleep 0.1; done; "
    assert run(cluster, "w1", f"{wait}cat /var/tmp/startup-1.*") == (0, "0\nalice")
    assert run(cluster, "w1", "stat -c %U /var/tmp/as-root") == (0, "root")


def test_downloads_find_the_way_out_of_this_machine(cluster):
    _, found = run(cluster, "w1", "sudo env")
    for name, value in environment.environment().items():
        assert f"{name}={value}" in found.splitlines()


def test_a_node_that_is_restarted_is_the_same_one(cluster):
    alice, made, credential, _ = cluster
    run(cluster, "w2", "echo kept > kept")
    slivers = {s.client_id: s.urn for s in alice.server.slivers()}
    alice.am.PerformOperationalAction([slivers["w2"]], credential, "geni_restart", {})
    wait_until_ready(alice, made, credential)
    assert run(cluster, "w2", "cat kept") == (0, "kept")
    alice.am.PerformOperationalAction([slivers["w2"]], credential, "geni_reload", {})
    wait_until_ready(alice, made, credential)
    assert run(cluster, "w2", "ls") == (0, "")


def test_users_can_be_exchanged(cluster):
    alice, made, credential, _ = cluster
    bob = alice.server.user("bob", passphrase=None)
    users = [
        {"urn": alice.login.urn, "keys": [alice.login.ssh_key]},
        {"urn": bob.urn, "keys": [alice.login.ssh_key]},
    ]
    for wanted in (users, users[:1]):
        action = ("geni_update_users", {"geni_users": wanted})
        assert alice.am.PerformOperationalAction([made], credential, *action).code == 0
        wait_until_ready(alice, made, credential)
        assert (run(cluster, "w1", "id -un", user="bob") == (0, "bob")) == (len(wanted) == 2)


def test_a_deleted_slice_leaves_only_what_is_the_project_s(cluster):
    alice, made, credential, _ = cluster
    assert alice.am.Delete([made], credential, {"blocking": True}).code == 0
    assert alice.server.slivers() == []
    kinds = sorted(name.rpartition("-")[2] for name in left(alice.server))
    assert kinds == ["control", "testproj"]
