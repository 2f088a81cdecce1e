"""From an allocation to files: ordinary, complete, without a secret."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpubed.configuration import configure, inventory, roles
from gpubed.core.paths import Project, assets
from gpubed.nodes.allocation import Cluster, Hop
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def cluster(tmp_path):
    return Project(tmp_path).cluster("lab")


@pytest.fixture
def rendered(cluster):
    wanted = sample_plan()
    granted = sample_allocation(wanted)
    changed = inventory.render(Cluster(cluster, wanted, granted))
    return cluster, wanted, granted, changed


def variables(cluster):
    return yaml.safe_load(cluster.variables.read_text())["all"]["vars"]


def as_ansible_reads(cluster, host):
    """Return the variables of a host, as real Ansible puts them together."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-inventory"),
            "-i",
            cluster.inventory,
            "--host",
            host,
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(assets() / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_every_node_is_in_its_groups(rendered):
    groups = yaml.safe_load((rendered[0].inventory / "hosts.yml").read_text())["all"]["children"]
    assert list(groups["head"]["hosts"]) == ["node-0"]
    assert list(groups["workers"]["hosts"]) == ["node-1", "node-2"]
    assert list(groups["group_node"]["hosts"]) == ["node-0", "node-1", "node-2"]


@pytest.mark.process
def test_openssh_reads_the_configuration_and_checks_host_keys(rendered):
    cluster, _, granted, _ = rendered
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(cluster.ssh_config), "head"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"hostname {granted.head.control_address}" in shown
    assert "stricthostkeychecking true" in shown
    assert "passwordauthentication no" in shown


def test_ansible_checks_host_keys_whatever_the_environment_says(rendered, monkeypatch):
    """ansible-runner sets the variable to False where it is not set."""
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "False")
    assert variables(rendered[0])["ansible_host_key_checking"] is True
    assert configure.environment()["ANSIBLE_HOST_KEY_CHECKING"] == "True"


@pytest.mark.process
def test_what_a_node_says_is_never_worked_out(cluster):
    """Host keys that it shows, among others: Ansible trusts what is in an inventory."""
    wanted, word = sample_plan(), "{{lookup('pipe','id')}}"
    granted = sample_allocation(wanted)
    told = {"host_keys": (f"ssh-ed25519 {word}",), "id": word, "control_address": word}
    nodes = (granted.nodes[0].model_copy(update=told), *granted.nodes[1:])
    inventory.render(Cluster(cluster, wanted, granted.model_copy(update={"nodes": nodes})))
    names = "gpubed_nodes[0].host_keys[0], gpubed_node_id, ansible_host, gpubed_state_dir"
    asked = f"{{{{ [{names}] | to_json }}}}"
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible"),
            *("-i", cluster.inventory, "node-0", "-o", "-m", "debug", "-a", f"msg={asked}"),
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(assets() / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(json.loads(done.stdout.partition("=> ")[2])["msg"])
    assert found[:3] == [f"ssh-ed25519 {word}", word, word]
    assert "{{" not in found[3]


@pytest.mark.process
@pytest.mark.parametrize("name", ["all/00.yml", "all.yml"])
def test_a_users_own_variables_win_whatever_their_name(rendered, name):
    cluster = rendered[0]
    own = cluster.inventory / "group_vars" / name
    own.parent.mkdir(parents=True)
    own.write_text("jupyterlab_port: 9999\n")
    found = as_ansible_reads(cluster, "node-1")
    assert found["jupyterlab_port"] == 9999
    assert found["gpubed_head"] == "node-0"


def test_variables_of_an_older_release_do_not_stay(rendered):
    """They would win: they were in the inventory's group_vars."""
    cluster, wanted, granted, _ = rendered
    before = roles.fingerprints(wanted, granted, cluster.inventory)
    cluster.former_variables.parent.mkdir(parents=True)
    cluster.former_variables.write_text("jupyterlab_port: 1\n")
    assert roles.fingerprints(wanted, granted, cluster.inventory) == before
    assert not inventory.is_rendered(Cluster(cluster, wanted, granted))
    inventory.render(Cluster(cluster, wanted, granted))
    assert not cluster.former_variables.exists()
    assert inventory.is_rendered(Cluster(cluster, wanted, granted))


@pytest.mark.process
def test_a_chain_of_hops_is_jumped_through_with_its_own_keys(rendered):
    """OpenSSH itself says how it would go, and knows every host on the way."""
    cluster, wanted, granted, _ = rendered
    gate = Hop(
        address="gate.example", port=2222, user="me", host_keys=("ssh-ed25519 G",), identity="/k"
    )
    inner = Hop(address="192.0.2.9", user="me", host_keys=("ssh-ed25519 INNER",))
    nodes = [node.model_copy(update={"via": (gate, inner)}) for node in granted.nodes]
    inventory.render(Cluster(cluster, wanted, granted.model_copy(update={"nodes": tuple(nodes)})))

    def shown(host):
        command = ["ssh", "-G", "-F", str(cluster.ssh_config), host]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert {"proxyjump hop-2", f"identityfile {cluster.private_key}"} <= set(shown("node-1"))
    assert {"hostname 192.0.2.9", "proxyjump hop-1"} <= set(shown("hop-2"))
    first = shown("hop-1")
    assert {"hostname gate.example", "port 2222", "user me", "identityfile /k"} <= set(first)
    assert not [line for line in first if line.startswith("proxyjump")]
    known = cluster.known_hosts.read_text().splitlines()
    assert {"hop-1 ssh-ed25519 G", "hop-2 ssh-ed25519 INNER"} <= set(known)
