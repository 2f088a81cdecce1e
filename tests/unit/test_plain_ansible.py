"""`ansible-playbook` by hand: as fast as `gpubed up`, in parts, and with words for newcomers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.configuration import inventory
from gpubed.configuration.roles import PHASES
from gpubed.core.paths import assets
from gpubed.nodes.allocation import Cluster
from support.samples import granted_cluster, sample_allocation, sample_plan

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent
SITE = assets() / "playbooks/site.yml"
STRATEGY = """
from ansible import constants
from ansible.plugins.loader import init_plugin_loader, strategy_loader
init_plugin_loader()
print(strategy_loader.get(constants.DEFAULT_STRATEGY, class_only=True).__mro__)
"""


# STAND-INS for roles: two phases, and one that has another's tasks done within its own. As in
# roles, the tag is the whole role's, and no include says it again.
def run(program, *words, **settings):
    """Run one of Ansible's programs as a user does, in the folder with ansible.cfg."""
    return subprocess.run(
        [BIN / program, *words],
        cwd=assets(),
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0", **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def strategy(**settings):
    done = subprocess.run(
        [sys.executable, "-c", STRATEGY],
        cwd=assets(),
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_it_runs_where_mitogen_is_not_installed(tmp_path):
    missing = tmp_path / "ansible_mitogen.py"  # a STAND-IN for a package that is not there
    missing.write_text("raise ImportError\n")
    said = strategy(PYTHONPATH=str(tmp_path))
    assert "mitogen" not in said
    assert "ansible.plugins.strategy.linear.StrategyModule" in said


@pytest.fixture
def rendered(tmp_path):
    """A cluster whose nodes nobody started."""
    paths = granted_cluster(tmp_path)
    plan = sample_plan()
    inventory.render(Cluster(paths, plan, sample_allocation(plan)))
    return paths


@pytest.mark.parametrize("program", ["ansible-playbook", "ansible-inventory"])
def test_a_fresh_checkout_says_what_makes_nodes(tmp_path, program):
    spec = tmp_path / "inventories/lab/cluster.yml"
    spec.parent.mkdir(parents=True)
    spec.write_text("version: 1\nnodes: [{count: 3}]\n")
    words = [SITE] if program == "ansible-playbook" else ["--list"]
    done = run(program, "-i", spec.parent, *words)
    assert done.returncode == 1
    assert "nothing is known of nodes of cluster lab: 'gpubed up lab' makes them" in done.stderr
    assert "group" not in done.stderr, "a specification is no group of hosts"


def test_hosts_without_a_way_to_them_are_not_enough(rendered):
    """Somebody copied the folder, or removed .gpubed."""
    rendered.ssh_config.unlink()
    done = run("ansible-playbook", "-i", rendered.inventory, SITE)
    assert "'gpubed configure lab --files-only' writes down those that there are" in done.stderr
    assert done.returncode == 1


def test_the_specification_adds_no_hosts(rendered):
    done = run("ansible-inventory", "-i", rendered.inventory, "--list")
    hosts = json.loads(done.stdout)["_meta"]["hostvars"]
    assert done.stderr == ""
    assert list(hosts) == ["node-0", "node-1", "node-2"]


def test_each_playbook_is_valid_with_the_inventory_of_a_cluster(rendered):
    books = [assets() / f"playbooks/{book}.yml" for book in ("site", *PHASES)]
    done = run("ansible-playbook", "-i", rendered.inventory, *books, "--syntax-check")
    assert done.returncode == 0, done.stderr
