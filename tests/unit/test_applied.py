"""The record of what was applied, written by real playbook runs."""

import json
import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gpubed.cluster import setup
from gpubed.configuration import applied
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster
from support import role_tasks
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process

NODES = ["node-0", "node-1", "node-2"]


@pytest.fixture
def cluster(tmp_path):
    return Project(tmp_path).cluster("lab")


@pytest.fixture
def record(cluster, tmp_path):
    """Runs `gpubed_applied` for a role on all nodes of the sample."""
    allocation = sample_allocation(sample_plan())
    playbook = tmp_path / "play.yml"

    def record(role, fingerprints, *words, without=(), states=("done",)):
        playbook.write_text(
            "- hosts: all\n  gather_facts: false\n  connection: local\n  tasks:\n"
            + "".join(
                f"    - gpubed_applied:\n        role: {role}\n        state: {state}\n"
                for state in states
            )
        )
        common = {"gpubed_state_dir": str(cluster.state)}
        own = {"gpubed_fingerprints": fingerprints}
        known = {key: value for key, value in own.items() if key not in without}
        hosts = {node.name: {"gpubed_node_id": node.id, **known} for node in allocation.nodes}
        inventory = tmp_path / "hosts.json"
        inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
        code, said = role_tasks.run(tmp_path, *words)
        return SimpleNamespace(returncode=code, stdout=said)

    record.allocation = allocation
    return record


@pytest.fixture
def missing(cluster, record):
    """Return where roles are missing, with the same versions wanted on all nodes."""

    def missing(wanted):
        return applied.missing(cluster, record.allocation, dict.fromkeys(NODES, wanted))

    return missing


def test_a_role_counts_once_every_node_has_it(missing, record):
    wanted = {"base": "1", "firewall": "7"}
    assert missing(wanted) == {"base": NODES, "firewall": NODES}
    assert record("base", wanted).returncode == 0
    assert missing(wanted) == {"firewall": NODES}
    assert record("firewall", wanted, "--limit", "node-0").returncode == 0
    assert missing(wanted) == {"firewall": NODES[1:]}
    assert record("firewall", wanted).returncode == 0
    assert missing(wanted) == {}
    assert missing({**wanted, "base": "2"}) == {"base": NODES}


def test_check_mode_and_unknown_roles_record_nothing(missing, record):
    assert record("base", {"base": "1"}, "--check").returncode == 0
    assert record("other", {"base": "1"}).returncode == 0
    assert missing({"base": "1"}) == {"base": NODES}


def test_an_inventory_that_was_not_rendered_is_refused(record):
    done = record("base", {}, without=["gpubed_fingerprints"])
    assert done.returncode != 0
    assert "run 'gpubed configure --files-only'" in done.stdout


def test_a_role_that_was_begun_and_not_done_is_noticed_by_the_next_run(missing, record):
    wanted = {"base": "1"}

    def changed(*states, words=()):
        recap = record("base", wanted, *words, states=states).stdout
        return set(map(int, re.findall(r"changed=(\d+)", recap)))

    assert changed("done") == {0}
    assert changed("begun", "begun") == {0}
    assert missing(wanted) == {"base": NODES}
    assert changed("begun", words=["--check"]) == {0}
    assert changed("begun", "begun") == {2}, "every part of the role is told"
    assert changed("begun", "done") == {1}, "and again, until it is done"
    assert changed("begun", "done") == {0}
    assert missing(wanted) == {}


def test_a_role_that_fails_half_way_is_due_also_for_what_there_was_before(
    cluster, missing, record, monkeypatch
):
    """A driver of another version, that failed and could not be taken back, stayed for good once
    nobody asked for it any more."""
    plan, before = sample_plan(), {"nvidia_driver": "1", "base": "1"}
    for role in before:
        record(role, before)
    due = {"nvidia_driver": NODES[1:]}
    monkeypatch.setattr("gpubed.configuration.due.now", lambda *_: due)
    monkeypatch.setattr(setup, "render", lambda *_: None)
    monkeypatch.setattr("gpubed.nodes.ssh.SSH.wait_ready", lambda *_: None)
    failing = Mock(side_effect=GpubedError("role nvidia_driver failed"))
    monkeypatch.setattr("gpubed.configuration.configure.configure", failing)
    with pytest.raises(GpubedError, match="nvidia_driver failed"):
        setup.set_up(Cluster(cluster, plan, record.allocation))
    assert missing(before) == due


@pytest.mark.parametrize("ending", [["begun"]])
def test_what_is_repaired_is_told_to_its_services(cluster, record, ending):
    """Killed between a new file and its restart, a service answers no longer where it should."""
    record("jupyterlab", {"jupyterlab": "1"}, states=ending)
    applied.forget(cluster, record.allocation, (), {"jupyterlab": NODES})
    recap = record("jupyterlab", {"jupyterlab": "1"}, states=["begun", "done"]).stdout
    assert set(re.findall(r"changed=(\d+)", recap)) == {"1"}


@pytest.mark.parametrize(("ending", "told"), [(["begun"], "1"), (["begun", "done"], "0")])
def test_a_node_that_was_cut_keeps_what_was_not_finished(cluster, missing, record, ending, told):
    record("base", {"base": "1"}, states=ending)
    applied.forget(cluster, record.allocation, NODES, {})
    assert missing({"base": "1"}) == {"base": NODES}
    recap = record("base", {"base": "1"}, states=["begun", "done"]).stdout
    assert set(re.findall(r"changed=(\d+)", recap)) == {told}
