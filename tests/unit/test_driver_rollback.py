"""A driver that cannot be installed is taken back on each node, and each says what came of it.

Real Ansible runs the role's own tasks; apt is a STAND-IN that fails where it is told to.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.core.paths import assets

pytestmark = pytest.mark.process

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
TASKS = assets() / "roles/nvidia_driver/tasks/rollback.yml"
APT = """#!/usr/bin/python3
import json, os, sys
print(json.dumps({"failed": "FAILS" in os.environ, "changed": True, "msg": "held broken packages"}))
"""
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - ansible.builtin.include_tasks: rollback.yml
    - ansible.builtin.fail: {msg: "{{ inventory_hostname }}: {{ __nvidia_driver_now }}"}
"""


def test_each_node_says_whether_its_former_driver_is_there_again(tmp_path):
    """A failure on one node used to say of all others that theirs could not be brought back."""
    there = TASKS.read_text().replace("ansible.builtin.apt:", "stand_in_apt:")
    assert "stand_in_apt:" in there
    (tmp_path / "rollback.yml").write_text(there)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "stand_in_apt").write_text(APT)
    common = {
        "ansible_python_interpreter": sys.executable,
        "__nvidia_driver_former": [["install", "installed", "libcuda1", "550.1-1"]],
        "__nvidia_driver_former_version": "550.1",
        "__nvidia_driver_note": {"rc": 1},
        "__nvidia_driver_tried": "",
        "__nvidia_driver_source_files": [str(tmp_path / "added.sources")],
        **{f"__nvidia_driver_{name}": str(tmp_path / name) for name in ("pin", "noted", "brought")},
    }
    hosts = {
        "node-0": {"gpubed_environment": {"FAILS": "1"}},
        "node-1": {"gpubed_environment": {}},
    }
    (tmp_path / "added.sources").touch()
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
    done = subprocess.run(
        [str(ANSIBLE), "-i", str(inventory), str(tmp_path / "play.yml")],
        env={**os.environ, "ANSIBLE_LIBRARY": str(tmp_path / "library")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "added.sources").exists(), "an upgrade would take a driver from there"
    said = " ".join(done.stdout.split())
    assert "node-0: Driver 550.1 could not be brought back: held broken packages." in said
    assert "node-1: Driver 550.1 is installed again." in said
