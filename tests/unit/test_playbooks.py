"""The playbooks, run by real Ansible with STAND-INS for roles, which only say where they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.configuration import configure
from gpubed.core.paths import assets

pytestmark = pytest.mark.process

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
PHASES = {"base": ["one", "two", "three"], "services": ["four"]}
NODES = ["node-0", "node-1", "node-2"]


@pytest.fixture
def play(tmp_path):
    """Play `site.yml`; return which role was applied on which node, in order."""
    log = tmp_path / "log"
    for role in (name for names in PHASES.values() for name in names):
        tasks = tmp_path / "roles" / role / "tasks" / "main.yml"
        tasks.parent.mkdir(parents=True)
        said = f"echo {role} {{{{ inventory_hostname }}}} >>{log}"
        tasks.write_text(json.dumps([{"name": role, "shell": said, "tags": [role]}]))
    phases = {path.stem: [] for path in (assets() / "playbooks").glob("*.yml")} | PHASES
    hosts = tmp_path / "hosts.json"
    given = {
        "gpubed_phases": phases,
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }
    hosts.write_text(json.dumps({"all": {"hosts": {node: {} for node in NODES}, "vars": given}}))

    def play(*words):
        log.write_text("")
        done = subprocess.run(
            [ANSIBLE, "-i", hosts, assets() / "playbooks" / "site.yml", *words],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(assets() / "ansible.cfg"),
                "ANSIBLE_ROLES_PATH": str(tmp_path / "roles"),
                "ANSIBLE_GATHERING": "explicit",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [tuple(line.split()) for line in log.read_text().splitlines()]

    return play


def steps(applied):
    """Return what was applied step by step: a role, and the nodes that were in it together."""
    found = []
    for role, node in applied:
        if not found or found[-1][0] != role:
            found.append((role, set()))
        found[-1][1].add(node)
    return found


def test_a_role_is_applied_where_it_is_due_and_nodes_wait_for_each_other(play, tmp_path):
    """In one loop, a node with fewer roles would let the others have them in another order."""
    due = {"one": ["node-2"], "three": ["node-0", "node-2"], "four": ["node-2"]}
    options = configure.where(tmp_path, due)
    assert options[-1] == "node-2,node-0"
    assert steps(play(*options)) == [
        ("one", {"node-2"}),
        ("three", {"node-0", "node-2"}),
        ("four", {"node-2"}),
    ]
