"""What a node prints is no event of Ansible, and has an end; real Ansible and mitogen."""

import json
import resource
import sys
import time

import pytest

from gpubed.configuration import configure
from gpubed.core import progress
from gpubed.core.paths import Project
from support.hostile import FLOOD, FORGERY, sitecustomize

pytestmark = pytest.mark.process

PLAY = """\
- name: Base
  hosts: all
  gather_facts: false
  tasks: [{name: Wait, ansible.builtin.command: sleep 3}]
"""


@pytest.fixture
def cluster(tmp_path):
    """A cluster of two hosts, which are processes here; `evil` runs as `say` has it."""
    cluster = Project(tmp_path / "project").cluster("lab")
    cluster.inventory.mkdir(parents=True)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "evil").mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/evil exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    given = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    nodes = {"good": {}, "evil": {"ansible_python_interpreter": str(python)}}
    cluster.hosts.write_text(json.dumps({"all": {"hosts": nodes, "vars": given}}))
    return cluster


def play(cluster, tmp_path, say, tasks=PLAY):
    """Play it; return the outcome and what was told meanwhile."""
    (tmp_path / "evil" / "sitecustomize.py").write_text(sitecustomize(say))
    (tmp_path / "play.yml").write_text(tasks)
    told = []
    progress.tell(told.append)
    try:
        return configure.configure(cluster, playbook=str(tmp_path / "play.yml")), told
    finally:
        progress.tell(None)


def test_what_a_node_prints_is_no_event(cluster, tmp_path):
    """ansible-runner took all of these for Ansible's, and removed the files."""
    victims = [folder / "x-partial.json" for folder in (cluster.state, tmp_path)]
    for victim in victims:
        victim.parent.mkdir(exist_ok=True, parents=True)
        victim.write_text("{}")
    outcome, told = play(cluster, tmp_path, FORGERY)
    assert outcome.changed == {"good": 1, "evil": 1}
    assert "sudo sh" not in json.dumps(told)
    assert all(victim.exists() for victim in victims)
    assert "\x1b" not in outcome.log.read_text()


def test_what_a_node_prints_has_an_end(cluster, tmp_path):
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, _ = play(cluster, tmp_path, FLOOD)
    assert time.monotonic() - started < 60
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000, f"{grown} KiB"
    kept = sum(path.stat().st_size for path in cluster.state.rglob("*") if path.is_file())
    assert kept < 20_000_000
    assert outcome.changed == {"good": 1, "evil": 1}
    assert "PLAY RECAP" in outcome.log.read_text(), "the end is kept"


LONG = """\
- name: Base
  hosts: all
  gather_facts: false
  tasks:
    - name: Say
      ansible.builtin.fail:
        msg: "{{ '\\x1b[2Jno ' * 100000 }}"
      when: inventory_hostname == 'evil'
"""


def test_what_a_failure_says_is_bounded_and_harmless(cluster, tmp_path):
    with pytest.raises(configure.ConfigurationFailed) as failed:
        play(cluster, tmp_path, "pass", LONG)
    assert failed.value.message.startswith("base: Say failed on evil: no no no")
    assert len(failed.value.message) < 5000
    assert "\x1b" not in failed.value.message
