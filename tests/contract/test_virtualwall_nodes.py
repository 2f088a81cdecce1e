"""Nodes of the virtualwall backend: granted by a GENI site, real, and reached by real SSH.

The tests use one slice of two nodes, in this order.
"""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import drivers, journal, prepare
from gpubed.backends.virtualwall.drivers import NodeDriver, SliceDriver
from gpubed.configuration import inventory
from gpubed.core import secret
from gpubed.nodes import host_keys, ssh
from gpubed.nodes.allocation import Allocation, Node
from gpubed.nodes.ssh import SSH, HostKeyMismatch
from gpubed.testbeds.driver import NodeFailed
from support.am import AmServer, Site
from support.am.machines import Machines
from support.impostor import SWAP
from support.wall import NAME, Wall

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

NODES = ("node-0", "node-1")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A site, a slice on it whose node-1 failed its first boot, and what became of both nodes."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker daemon answers")
    site, root = Site(), tmp_path_factory.mktemp("vw")
    nodes = Machines(control="10.127.215.0/24", cpus=1.0, memory=512 << 20)
    with pytest.MonkeyPatch.context() as patch, AmServer(root / "am", site=site, nodes=nodes) as s:
        patch.setenv("GPUBED_ROOT", "")
        wall = Wall(
            root / "project",
            s,
            s.user("alice", passphrase=None),
            backend={"poll": 0.5, "patience": 120, "shared_folder": "/proj/testproj"},
            nodes=[{"name": "node", "count": 2, "min": 1}],
            networks={"experiment": {"rate": "100 Mbit/s", "mtu": 1400}},
            storage={"shared": {"provider": "volume"}},
        )
        key = secret.ensure_key(wall.paths.private_key)
        inputs = {**wall.inputs, "public_key": key}
        s.faults.node("node-1", fails="no boot loader", times=1)
        id_, result = SliceDriver(wall.paths).create(inputs)
        yield SimpleNamespace(server=s, wall=wall, slice=result, paths=wall.paths, made={})
        SliceDriver(wall.paths).delete(id_, inputs)
        assert s.slivers() == []


def inputs_of(there, name, **changes):
    testbed = there.wall.plan.spec.backend.model_dump(mode="json", exclude_none=True)
    return {
        "cluster": NAME,
        "uuid": there.wall.uuid,
        "name": name,
        "testbed": testbed | changes,
        "granted": there.slice["nodes"][name],
        "mtu": 1400,
        "shared": {"folder": f"/proj/testproj/gpubed-{there.wall.uuid}", "path": "/shared"},
    }


def into(there, name):
    known = Node.model_validate({"name": name, "group": "", "role": "worker", **there.made[name]})
    return SSH(known, there.paths)


def test_a_node_that_did_not_boot_is_booted_once_more(there):
    assert there.slice["nodes"]["node-1"]["failed"]
    for name in NODES:
        id_, there.made[name] = NodeDriver(there.paths).create(inputs_of(there, name))
        assert id_ == there.made[name]["id"]
    assert there.made["node-1"]["experiment_address"]


def test_the_host_keys_are_what_the_node_wrote_under_the_token(there):
    for name in NODES:
        with into(there, name) as ssh_:
            assert ssh_.run("id -un").stdout == "alice\n"
            shown = ssh_.run(prepare.SHOW).stdout
        keys = prepare.proved(shown, prepare.token(there.paths))
        assert keys == tuple(there.made[name]["host_keys"])


def test_a_node_is_prepared_and_stays_so(there):
    with into(there, "node-0") as one, into(there, "node-1") as other:
        assert one.run("sudo -n id -u").stdout == "0\n"
        assert "alice" in one.run("id -nG").stdout
        address = there.made["node-0"]["experiment_address"]
        link = one.run(f"ip -o -4 address show to {address}").stdout.split()[1]
        assert one.run(f"cat /sys/class/net/{link}/mtu").stdout == "1400\n"
        one.run("echo seen | sudo -n tee /shared/token")
        assert other.run("cat /shared/token").stdout == "seen\n"
        assert one.run("systemctl is-enabled gpubed-testbed").stdout == "enabled\n"
        # As after a reboot onto an image that does not know the address.
        one.run(f"sudo -n ip address flush dev {link} && sudo -n gpubed-testbed")
        assert address in one.run(f"ip -o -4 address show dev {link}").stdout


def test_creating_again_and_reading_change_nothing(there):
    for name in NODES:
        id_, result = NodeDriver(there.paths).create(inputs_of(there, name))
        assert result == there.made[name]
        assert NodeDriver(there.paths).read(id_, inputs_of(there, name)) == result
        journal.forget_node(there.paths, name)
        assert NodeDriver(there.paths).read(id_, inputs_of(there, name)) == result
        journal.save_node(there.paths, name, result)


def test_nodes_are_reached_through_a_bastion_with_the_logins_key(there):
    """node-0 stands for the bastion: the login's key opens it, as at the testbed."""
    door = there.made["node-0"]
    bastion = {"host": door["control_address"], "user": "alice", "host_keys": door["host_keys"]}
    _, result = NodeDriver(there.paths).create(inputs_of(there, "node-1", bastion=bastion))
    assert result["via"][0]["identity"].startswith(str(there.paths.secrets))
    assert result["host_keys"] == there.made["node-1"]["host_keys"]
    allocation = Allocation.model_validate(
        {
            "cluster": NAME,
            "uuid": there.wall.uuid,
            "backend": "virtualwall",
            "nodes": [{"name": "node-1", "group": "node", "role": "head", **result}],
            "control": {"subnet": "10.127.215.0/24"},
        }
    )
    there.paths.known_hosts.write_text(inventory.known_hosts(allocation))
    there.paths.ssh_config.write_text(inventory.ssh_config(allocation, there.paths))
    done = subprocess.run(
        ["ssh", "-F", there.paths.ssh_config, "node-1", "sudo -n hostname"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_whoever_answers_without_the_token_is_not_believed(there, monkeypatch):
    """An impostor cannot make the HMAC: here the token that is expected is another."""
    monkeypatch.setattr(drivers, "_PROOF_S", 1.0)
    monkeypatch.setattr(prepare, "token", lambda _: "another")
    with pytest.raises(NodeFailed, match="does not prove"):
        NodeDriver(there.paths).create(inputs_of(there, "node-0"))
    _, result = NodeDriver(there.paths).create(inputs_of(there, "node-0", host_keys="first_use"))
    assert result["host_keys"][0] in there.made["node-0"]["host_keys"]
    journal.save_node(there.paths, "node-0", there.made["node-0"])


def test_another_key_than_the_proved_one_ends_the_connection(there):
    wrong = {**there.made["node-0"], "host_keys": there.made["node-1"]["host_keys"]}
    impostor = Node.model_validate({"name": "node-0", "group": "", "role": "head", **wrong})
    with SSH(impostor, there.paths) as ssh_, pytest.raises((HostKeyMismatch, ssh.Unreachable)):
        ssh_.run("true")


def test_a_node_that_was_installed_anew_proves_its_new_key(there, monkeypatch):
    """An image that is loaded again makes new keys, and runs the startup command again."""
    name, old = "node-1", there.made["node-1"]
    with into(there, name) as ssh_:
        ssh_.run("sudo -n sh -c %s", SWAP)
    monkeypatch.setattr(drivers, "_PROOF_S", 1.0)
    with pytest.raises(ssh.Unreachable, match="does not prove"):
        NodeDriver(there.paths).read(old["id"], inputs_of(there, name))
    seen = Node.model_validate({"name": name, "group": "", "role": "worker", **old})
    keys = (host_keys.presented(seen, there.paths),)
    with SSH(seen.model_copy(update={"host_keys": keys}), there.paths) as ssh_:
        ssh_.run(prepare.command(there.paths))
    there.made[name] = NodeDriver(there.paths).read(old["id"], inputs_of(there, name))
    assert there.made[name]["host_keys"] != old["host_keys"]
    with into(there, name) as ssh_:
        ssh_.run("true")


def test_only_down_takes_the_clusters_part_of_the_shared_folder_along(there):
    NodeDriver(there.paths).delete(there.made["node-1"]["id"], inputs_of(there, "node-1"))
    with into(there, "node-1") as ssh_:
        assert ssh_.run("ls /proj/testproj").stdout == f"gpubed-{there.wall.uuid}\n"
        journal.remove_shared(there.paths)
        assert ssh_.run("ls /proj/testproj").stdout == ""
    for name in reversed(NODES):
        NodeDriver(there.paths).delete(there.made[name]["id"], inputs_of(there, name))
