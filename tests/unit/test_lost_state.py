"""Somebody deleted .gpubed while the cluster ran: every verb leads to what finds it again.

Nothing exists here: what the testbed has is a STAND-IN.
"""

import contextlib
import json

import pytest
from typer.testing import CliRunner

from gpubed import audit, cli, identities, lifecycle, lost_state, registry, runlock
from gpubed.backends.base import Existing
from gpubed.cli.commands import audit as audit_verb
from gpubed.errors import GpubedError, UsageError
from gpubed.paths import Project
from support.samples import sample_plan

UUID = "6f0c0000-0000-4000-8000-000000000000"


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs a verb where a cluster exists that no state knows."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n")
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    local = type(registry.backend("local"))
    there = [Existing("node", "node-0", "c0", UUID), Existing("network", "control", "n0", UUID)]
    monkeypatch.setattr(local, "existing", lambda *_: there)
    monkeypatch.setattr(local, "doctor", lambda *_: [])

    def run(*words):
        return CliRunner().invoke(cli.build(), [*words], standalone_mode=False)

    return run


def test_down_does_not_say_that_there_was_nothing(call):
    done = call("down", "lab", "-y", "--engine", "embedded")
    assert done.return_value == 1
    assert f"another lab was left alone (uuid {UUID}): node node-0, network control" in done.stderr
    assert f"gpubed audit lab --adopt --uuid {UUID}" in done.stderr
    assert f"gpubed audit lab --remove --uuid {UUID}" in done.stderr
    assert "nothing to remove" not in done.output


def test_up_asks_before_it_makes_a_second_cluster(call):
    done = call("up", "lab", "--engine", "embedded")
    assert isinstance(done.exception, GpubedError)
    assert done.exception.exit_code == 2
    assert f"there is another lab (uuid {UUID})" in done.exception.message
    assert "gpubed audit lab tells how to take it over" in done.exception.message


def test_audit_gives_whole_commands(call):
    done = call("audit", "lab", "--engine", "embedded")
    assert f"gpubed audit lab --adopt --uuid {UUID}" in done.stdout
    assert f"gpubed audit lab --remove --uuid {UUID}" in done.stdout


@pytest.mark.parametrize("words", [("status", "lab"), ("run", "lab", "digits"), ("ssh", "lab")])
def test_verbs_that_need_a_cluster_name_the_one_that_finds_it(call, words):
    done = call(*words)
    assert done.exception.message == "cluster lab is not up"
    assert done.exception.hint == "gpubed up lab; if it was up already: gpubed audit lab"


FOLDER = Existing("shared folder", "/groups/gpubed-1", "/groups/gpubed-1", UUID, data=True)


@pytest.mark.parametrize("kept", [True, False])
def test_audit_names_data_that_only_nodes_reach(call, tmp_path, monkeypatch, kept):
    """As Virtual Wall's folder, after `down --keep-data` and after all else is lost."""
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "existing", lambda *_: [])
    monkeypatch.setattr(local, "data_within", lambda *_: [FOLDER])
    if kept:
        identities.keep(Project(tmp_path).cluster("lab"), UUID)
    done = call("audit", "lab", "--engine", "embedded")
    assert "shared folder /groups/gpubed-1: only nodes reach it" in done.stdout
    assert (f"gpubed audit lab --adopt --uuid {UUID}" in done.stdout) is not kept
    told = json.loads(call("audit", "lab", "--json", "--engine", "embedded").stdout)
    assert [row["uuid"] for row in told["within"]] == [UUID]
    assert told["unrecorded"] == told["others"] == []


def test_what_a_plugin_made_is_given_back_when_told_to(call, tmp_path, monkeypatch):
    """As on OpenStack, where an `up` would make everything a second time."""
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "native", frozenset({"openstack:compute/instance:Instance"}))
    paths, removed = Project(tmp_path).cluster("lab"), []
    monkeypatch.setattr(audit, "remove", lambda _, things: removed.extend(things))
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: None)
    adopt = ("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded")
    refused = call(*adopt).exception
    assert refused.exit_code == 2
    assert "cannot be taken into a new state" in refused.message
    assert refused.hint.endswith(f"gpubed audit lab --adopt --uuid {UUID} -y")
    assert (removed, identities.kept(paths)) == ([], None)
    call(*adopt, "-y")
    assert [thing.name for thing in removed] == ["node-0", "control"]
    assert identities.kept(paths) == UUID
    assert call(*adopt).exception is None, "said twice, it goes on"


def test_what_has_gone_by_the_time_the_lock_is_had_is_not_taken_over(call, tmp_path, monkeypatch):
    """Another run, which held the lock until then, has taken the cluster down."""
    paths, hold = Project(tmp_path).cluster("lab"), runlock.hold

    @contextlib.contextmanager
    def after_another(*words):
        monkeypatch.setattr(type(registry.backend("local")), "existing", lambda *_: [])
        with hold(*words) as ended:
            yield ended

    monkeypatch.setattr(runlock, "hold", after_another)
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: pytest.fail("a cluster is made"))
    refused = call("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded").exception
    assert refused.message == f"nothing carries the uuid {UUID}"
    assert identities.kept(paths) is None


@pytest.mark.parametrize("name", ["static", "local"])
def test_nodes_that_stay_are_taken_over_as_they_are(call, tmp_path, monkeypatch, name):
    """Own hosts, too, though the cluster's key is lost: its user's own opens them."""
    assert registry.backend(name).exchanges_keys
    monkeypatch.setattr(audit, "remove", lambda *_: pytest.fail("something is removed"))
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: None)
    call("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded")
    assert identities.kept(Project(tmp_path).cluster("lab")) == UUID


class LostStack:
    """A STAND-IN for a cluster's stack: it has nothing, and perhaps a run was killed in it."""

    def __init__(self, cluster, *, interrupted=False):
        self.cluster, self._interrupted = cluster, interrupted

    def has_resources(self):
        return False

    def interrupted(self):
        return self._interrupted


NODES = [Existing("container", f"gpubed-lab-{n}", f"c{n}", UUID, node=f"node-{n}") for n in "01"]


@pytest.fixture
def lost(tmp_path, monkeypatch):
    """A function that minds the state of a cluster of one node, of which two are there."""
    paths, local = Project(tmp_path).cluster("lab"), type(registry.backend("local"))
    monkeypatch.setattr(local, "existing", lambda *_: NODES)
    identities.keep(paths, UUID)
    asked = []

    def mind(**how):
        wanted = sample_plan(nodes=[{"count": 1}])
        lost_state.mind(LostStack(paths, **how), registry.backend("local"), wanted, asked.extend)
        return asked

    return mind


def test_up_asks_before_it_gives_up_a_node_that_the_specification_has_no_more(lost):
    [line] = lost()
    assert line.startswith("container gpubed-lab-1: what is on its own disk is lost")


def test_up_makes_nothing_a_second_time_of_what_a_plugin_made(lost, monkeypatch):
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "native", frozenset({"openstack:compute/instance:Instance"}))
    with pytest.raises(UsageError, match="the state of lab is lost") as caught:
        lost()
    assert "container gpubed-lab-0" in caught.value.message
    assert caught.value.hint.endswith("gpubed audit lab --remove")


def test_what_a_killed_first_run_left_is_not_called_lost(lost):
    assert lost(interrupted=True) == []


DATA = Existing("volume", "gpubed-lab-shared", "v0", UUID, data=True, size=3 << 30)


def test_removing_what_carries_a_uuid_leaves_its_data_unless_told(call, monkeypatch):
    local, removed = type(registry.backend("local")), []
    monkeypatch.setattr(local, "existing", lambda *_: [*NODES, DATA])
    monkeypatch.setattr(audit, "remove", lambda _, things: removed.extend(things) or [])
    words = ("audit", "lab", "--remove", "--uuid", UUID, "-y", "--engine", "embedded")
    said = call(*words).stderr
    assert removed == NODES
    assert "kept: volume gpubed-lab-shared, 3.0 GiB" in said
    assert f"gpubed audit lab --remove --uuid {UUID} --data" in said
    removed.clear()
    call(*words, "--data")
    assert removed == [*NODES, DATA]
    refused = call("audit", "lab", "--remove", "--data", "--engine", "embedded").exception
    assert refused.hint == "gpubed down lab"


def test_a_node_that_is_in_no_state_goes_only_when_that_is_approved(monkeypatch):
    """It may be of a state that was put back, and not of the run that was killed."""
    removed = []
    monkeypatch.setattr(audit, "unrecorded", lambda *_, **__: NODES)
    monkeypatch.setattr(audit, "remove_unrecorded", lambda *_: removed.extend(NODES) or ["x"])

    def refuse(_):
        raise UsageError("not confirmed", "-y")

    with pytest.raises(UsageError):
        lifecycle._remove_leftovers(LostStack(None), refuse)
    assert removed == []
    lifecycle._remove_leftovers(LostStack(None), lambda _: None)
    assert removed == NODES


def test_audit_leads_out_of_a_second_cluster_that_is_half_made(call, tmp_path):
    paths = Project(tmp_path).cluster("lab")
    identities.keep(paths, UUID.replace("6f0c", "0000"))
    first = "first remove what is half made: gpubed down lab\n"
    offer = f"gpubed audit lab --adopt --uuid {UUID}"
    said = call("audit", "lab", "--engine", "embedded").stdout
    assert first in said
    assert offer in said
    paths.allocation.write_text("{}")
    said = call("audit", "lab", "--engine", "embedded").stdout
    assert "gpubed down" not in said, "one that came to its end is not to be removed"
    assert offer not in said
