"""Somebody deleted .gpubed while the cluster ran: every verb leads to what finds it again.

Nothing exists here: what the testbed has is a STAND-IN.
"""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.commands import audit as audit_verb
from gpubed.cluster import lost_state, up
from gpubed.core import record
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused, UsageError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.base import Existing
from support.bound import kind
from support.samples import sample_plan

UUID = "6f0c0000-0000-4000-8000-000000000000"


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs a verb where a cluster exists that no state knows."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n")
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    local = kind("local")
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


@pytest.mark.parametrize("option", ["--adopt", "--remove"])
def test_audit_does_not_guess_what_is_meant(call, option):
    """It did nothing, and said nothing of it."""
    refused = call("audit", "lab", option, "-y", "--engine", "embedded").exception
    assert refused.exit_code == 2
    assert refused.hint == f"gpubed audit lab {option} --uuid {UUID}"


@pytest.mark.parametrize("state", [True, False])
def test_a_lost_passphrase_is_not_made_anew(call, tmp_path, state):
    """Another one opens nothing; the state that it sealed can only be taken over."""
    config = tmp_path / ".gpubed/pulumi/config/Pulumi.lab.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("encryptionsalt: v1:x:v1:y\n")
    sealed = tmp_path / ".gpubed/pulumi/.pulumi/stacks/gpubed/lab.json"
    if state:
        sealed.parent.mkdir(parents=True)
        sealed.write_text("{}")
    refused = call("plan", "lab", "--engine", "embedded").exception
    assert "passphrase is lost, which decrypts the state of lab" in refused.message
    assert f"rm {config}" in refused.hint
    assert (f"mv {sealed} {sealed}.sealed" in refused.hint) is state
    assert not (tmp_path / ".gpubed/pulumi/passphrase").exists()


@pytest.mark.parametrize("words", [("status", "lab"), ("run", "lab", "digits"), ("ssh", "lab")])
def test_verbs_that_need_a_cluster_name_the_one_that_finds_it(call, words):
    done = call(*words)
    assert done.exception.message == "cluster lab is not up"
    assert done.exception.hint == "gpubed up lab; if it was up already: gpubed audit lab"


def test_what_a_plugin_made_is_given_back_when_told_to(call, tmp_path, monkeypatch):
    """As on OpenStack, where an `up` would make everything a second time."""
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "native", frozenset({"openstack:compute/instance:Instance"}))
    paths, removed = Project(tmp_path).cluster("lab"), []
    monkeypatch.setattr(kind("local"), "remove", lambda _, thing: removed.append(thing))
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_, **__: None)
    adopt = ("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded")
    refused = call(*adopt).exception
    assert refused.exit_code == 2
    assert "cannot be adopted into a new state" in refused.message
    assert refused.hint.endswith(f"gpubed audit lab --adopt --uuid {UUID} -y")
    assert (removed, record.uuid(paths)) == ([], None)
    call(*adopt, "-y")
    assert [thing.name for thing in removed] == ["node-0", "control"]
    assert record.uuid(paths) == UUID
    assert call(*adopt).exception is None, "said twice, it goes on"


class LostStack:
    """A STAND-IN for a cluster's stack: it has nothing, and perhaps a run was killed in it."""

    def __init__(self, cluster, *, interrupted=False):
        self.paths, self._interrupted = cluster, interrupted

    def has_resources(self):
        return False

    def interrupted(self):
        return self._interrupted


NODES = [Existing("container", f"gpubed-lab-{n}", f"c{n}", UUID, node=f"node-{n}") for n in "01"]
# Groups in this order give `first-0` the address that `node-0` has had.
SWAPPED = [{"name": "first", "count": 1}, {"name": "node", "count": 1}]


@pytest.fixture
def told(monkeypatch):
    """What a run notes."""
    notes = []
    monkeypatch.setattr(lost_state.progress, "emit", lambda _, message: notes.append(message))
    return notes


@pytest.fixture
def lost(tmp_path, monkeypatch, told):
    """A function that minds the state of a cluster of one node, of which two are there."""
    paths, local = Project(tmp_path).cluster("lab"), kind("local")
    monkeypatch.setattr(local, "existing", lambda *_: NODES)
    record.keep_uuid(paths, UUID)
    asked = []

    def mind(nodes=({"count": 1},), interrupted=False, **wishes):
        wanted, stack = (
            sample_plan(nodes=list(nodes), **wishes),
            LostStack(paths, interrupted=interrupted),
        )
        lost_state.require_approval(stack, registry.bound("local", paths), wanted, asked.extend)
        return asked

    return mind


def test_up_asks_before_it_gives_up_a_node_that_the_specification_has_no_more(lost):
    [line] = lost()
    assert line.startswith("container gpubed-lab-1: what is on its own disk is lost")


def at(address):
    return Existing("container", "gpubed-lab-0", "c0", UUID, node="node-0", address=str(address))


def test_data_that_nobody_will_mount_is_said_to_stay_unused(lost, told, monkeypatch):
    monkeypatch.setattr(kind("local"), "existing", lambda *_: [DATA])
    backend = {"type": "local", "runtime": "vm"}
    [said] = lost(backend=backend, storage={"shared": {"provider": "nfs"}})
    assert said.startswith("volume gpubed-lab-shared: the specification has no volume")
    assert "unused, until gpubed down lab removes it" in said
    assert told == []


def test_a_node_in_use_never_gives_its_address_away_unasked(lost, monkeypatch):
    heir = sample_plan(nodes=SWAPPED).nodes[0]
    assert heir.name == "first-0"
    monkeypatch.setattr(kind("local"), "existing", lambda *_: [at(heir.control_address)])
    with pytest.raises(UsageError, match="which the specification now gives to first-0") as caught:
        lost(nodes=SWAPPED)
    assert "make inventories/lab/cluster.yml what it was" in caught.value.hint
    assert lost() == [], "at its own address it stays"


SILENT = GpubedError("the testbed answers 503 Service Unavailable", "look at its status page")


@pytest.mark.parametrize("kept", [True, False], ids=["kept uuid", "nothing kept"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SILENT, 4),
        (Refused("your account has ended"), 4),
        (PrerequisiteMissing("no login", "log in"), 3),
    ],
    ids=["silent", "refused", "no way in"],
)
def test_a_testbed_that_does_not_say_what_is_there_gets_no_second_cluster(
    call, tmp_path, monkeypatch, error, code, kept
):
    def silent(*_):
        raise error

    monkeypatch.setattr(kind("local"), "existing", silent)
    monkeypatch.setattr(up, "_up", lambda *_: pytest.fail("a cluster is made"))
    if kept:
        record.keep_uuid(Project(tmp_path).cluster("lab"), UUID)
    refused = call("up", "lab", "-y", "--engine", "embedded").exception
    assert refused.exit_code == code
    assert error.message in refused.message
    assert refused.hint


DATA = Existing("volume", "gpubed-lab-shared", "v0", UUID, data=True, size=3 << 30)


def test_removing_what_carries_a_uuid_leaves_its_data_unless_told(call, monkeypatch):
    local, removed = kind("local"), []
    monkeypatch.setattr(local, "existing", lambda *_: [*NODES, DATA])
    monkeypatch.setattr(local, "remove", lambda _, thing: removed.append(thing))
    words = ("audit", "lab", "--remove", "--uuid", UUID, "-y", "--engine", "embedded")
    said = call(*words).stderr
    assert removed == NODES
    assert "kept: volume gpubed-lab-shared, 3 GiB" in said
    assert f"gpubed audit lab --remove --uuid {UUID} --data" in said
    removed.clear()
    call(*words, "--data")
    assert removed == [*NODES, DATA]
    refused = call("audit", "lab", "--remove", "--data", "--engine", "embedded").exception
    assert refused.hint == "gpubed down lab"


FOLDER = Existing("shared folder", "/groups/gpubed-1", "/groups/gpubed-1", UUID, data=True)


@pytest.mark.parametrize("kept", [True, False])
def test_audit_names_data_that_only_nodes_reach(call, tmp_path, monkeypatch, kept):
    """As Virtual Wall's folder, after `down --keep-data` and after all else is lost."""
    local = kind("local")
    monkeypatch.setattr(local, "existing", lambda *_: [])
    monkeypatch.setattr(local, "data_within", lambda *_: [FOLDER])
    if kept:
        record.keep_uuid(Project(tmp_path).cluster("lab"), UUID)
    done = call("audit", "lab", "--engine", "embedded")
    assert "shared folder /groups/gpubed-1: only nodes reach it" in done.stdout
    assert (f"gpubed audit lab --adopt --uuid {UUID}" in done.stdout) is not kept
    told = json.loads(call("audit", "lab", "--json", "--engine", "embedded").stdout)
    assert [row["uuid"] for row in told["within"]] == [UUID]
    assert told["unrecorded"] == told["others"] == []
