"""Somebody deleted .gpubed while the cluster ran: every verb leads to what finds it again.

Nothing exists here: what the testbed has is a STAND-IN.
"""

import contextlib
import dataclasses
import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.commands import audit as audit_verb
from gpubed.cluster import audit, lost_state, up
from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused, UsageError
from gpubed.core.paths import Project
from gpubed.engines import stack as stacks
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.testbeds import registry
from gpubed.testbeds.base import Existing, Finding
from gpubed.testbeds.specification import load_plan
from support.bound import kind
from support.known import mark
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


def test_audit_gives_whole_commands(call):
    done = call("audit", "lab", "--engine", "embedded")
    assert f"gpubed audit lab --adopt --uuid {UUID}" in done.stdout
    assert f"gpubed audit lab --remove --uuid {UUID}" in done.stdout


@pytest.mark.parametrize("option", ["--adopt", "--remove"])
def test_audit_does_not_guess_what_is_meant(call, option):
    """It did nothing, and said nothing of it."""
    refused = call("audit", "lab", option, "-y", "--engine", "embedded").exception
    assert refused.exit_code == 2
    assert refused.hint == f"gpubed audit lab {option} --uuid {UUID}"


@pytest.mark.parametrize("options", [["--uuid", UUID], ["--uuid", UUID, "--data"]])
def test_what_is_to_be_confirmed_is_what_was_asked_for(call, options):
    """Without the uuid the command meant something else, or led back to the first one."""
    refused = call("audit", "lab", "--remove", *options, "--engine", "embedded").exception
    assert refused.hint == f"gpubed audit lab --remove {' '.join(options)} -y"


@pytest.mark.parametrize("verb", [("audit",), ("plan",), ("down", "-y")])
def test_a_uuid_that_was_cut_off_leads_back_to_the_cluster(call, tmp_path, verb):
    """After a power cut; each verb sent to `audit`, which sent to itself."""
    cut = tmp_path / ".gpubed/lab/uuid"
    cut.parent.mkdir(parents=True)
    cut.touch()
    refused = call(verb[0], "lab", *verb[1:], "--engine", "embedded").exception
    assert refused.hint.startswith(f"rm {cut} ")
    cut.unlink()
    assert f"--adopt --uuid {UUID}" in call("audit", "lab", "--engine", "embedded").stdout


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
    assert "passphrase is lost: it opens the state of lab" in refused.message
    assert f"rm {config}" in refused.hint
    assert (f"mv {sealed} {sealed}.sealed" in refused.hint) is state
    assert not (tmp_path / ".gpubed/pulumi/passphrase").exists()


@pytest.mark.parametrize("words", [("status", "lab"), ("run", "lab", "digits"), ("ssh", "lab")])
def test_verbs_that_need_a_cluster_name_the_one_that_finds_it(call, words):
    done = call(*words)
    assert done.exception.message == "cluster lab is not up"
    assert done.exception.hint == "gpubed up lab; if it was up already: gpubed audit lab"


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


def test_what_a_plugin_made_is_given_back_when_told_to(call, tmp_path, monkeypatch):
    """As on OpenStack, where an `up` would make everything a second time."""
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "native", frozenset({"openstack:compute/instance:Instance"}))
    paths, removed = Project(tmp_path).cluster("lab"), []
    monkeypatch.setattr(kind("local"), "remove", lambda _, thing: removed.append(thing))
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: None)
    adopt = ("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded")
    refused = call(*adopt).exception
    assert refused.exit_code == 2
    assert "cannot be taken into a new state" in refused.message
    assert refused.hint.endswith(f"gpubed audit lab --adopt --uuid {UUID} -y")
    assert (removed, record.uuid(paths)) == ([], None)
    call(*adopt, "-y")
    assert [thing.name for thing in removed] == ["node-0", "control"]
    assert record.uuid(paths) == UUID
    assert call(*adopt).exception is None, "said twice, it goes on"


def test_what_has_gone_by_the_time_the_lock_is_had_is_not_taken_over(call, tmp_path, monkeypatch):
    """Another run, which held the lock until then, has taken the cluster down."""
    paths, hold = Project(tmp_path).cluster("lab"), runlock.hold

    @contextlib.contextmanager
    def after_another(*words):
        monkeypatch.setattr(kind("local"), "existing", lambda *_: [])
        with hold(*words) as ended:
            yield ended

    monkeypatch.setattr(runlock, "hold", after_another)
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: pytest.fail("a cluster is made"))
    refused = call("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded").exception
    assert refused.message == f"nothing carries the uuid {UUID}"
    assert record.uuid(paths) is None


@pytest.mark.parametrize("name", ["static", "local"])
def test_nodes_that_stay_are_taken_over_as_they_are(call, tmp_path, monkeypatch, name):
    """Own hosts, too, though the cluster's key is lost: its user's own opens them."""
    assert registry.backend(name).exchanges_keys
    monkeypatch.setattr(kind("local"), "remove", lambda *_: pytest.fail("something is removed"))
    monkeypatch.setattr(audit_verb, "_adopt", lambda *_: None)
    call("audit", "lab", "--adopt", "--uuid", UUID, "--engine", "embedded")
    assert record.uuid(Project(tmp_path).cluster("lab")) == UUID


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
        lost_state.mind(stack, registry.bound("local", paths), wanted, asked.extend)
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


def at(address):
    return Existing("container", "gpubed-lab-0", "c0", UUID, node="node-0", address=str(address))


def test_what_is_known_again_is_said_once_to_be_taken_over(lost, told, monkeypatch):
    local = kind("local")
    network = Existing("network", "gpubed-lab-control", "n0", UUID)
    job = Existing("job", "j", "j0", UUID, transient=True)
    stranger = Existing("volume", "not-ours", "v1", "another", data=True)
    monkeypatch.setattr(local, "existing", lambda *_: [*NODES, network, DATA, job, stranger])
    lost()
    assert told == [
        "container gpubed-lab-0, network gpubed-lab-control, volume gpubed-lab-shared were there "
        "already and are taken over"
    ]


def test_data_that_was_kept_is_said_to_be_taken_over(lost, told, monkeypatch):
    monkeypatch.setattr(kind("local"), "existing", lambda *_: [DATA])
    lost()
    assert told == ["volume gpubed-lab-shared was there already and is taken over"]


def test_data_that_nobody_will_mount_is_said_to_stay_unused(lost, told, monkeypatch):
    monkeypatch.setattr(kind("local"), "existing", lambda *_: [DATA])
    backend = {"type": "local", "runtime": "vm"}
    [said] = lost(backend=backend, storage={"shared": {"provider": "nfs"}})
    assert said.startswith("volume gpubed-lab-shared: the specification has no volume")
    assert "unused, until gpubed down lab removes it" in said
    assert told == []


def test_kept_volumes_that_a_plugin_does_not_adopt_are_named(tmp_path):
    """They are of a cluster that is down, and its specification may well have data volumes."""
    volume = Existing("volume", "gpubed-lab-0-data-0", "v", UUID, data=True)
    cloud = registry.bound("openstack", Project(tmp_path).cluster("lab"))
    wanted = sample_plan(storage={"shared": {"provider": "nfs"}})
    [said] = lost_state.given_up([volume], cloud, wanted)
    assert said.startswith("volume gpubed-lab-0-data-0: no state knows it by now")
    assert "gpubed down lab removes it" in said


def test_a_node_in_use_never_gives_its_address_away_unasked(lost, monkeypatch):
    heir = sample_plan(nodes=SWAPPED).nodes[0]
    assert heir.name == "first-0"
    monkeypatch.setattr(kind("local"), "existing", lambda *_: [at(heir.control_address)])
    with pytest.raises(UsageError, match="which the specification now gives to first-0") as caught:
        lost(nodes=SWAPPED)
    assert "make inventories/lab/cluster.yml what it was" in caught.value.hint
    assert lost() == [], "at its own address it stays"


def test_nor_where_a_state_was_put_back_that_does_not_know_it(tmp_path, monkeypatch):
    wanted = sample_plan(nodes=[{"name": "other", "count": 1}])
    there = [at(wanted.nodes[0].control_address)]
    monkeypatch.setattr(audit, "unrecorded", lambda *_: there)
    stack = LostStack(Project(tmp_path).cluster("lab"))
    with pytest.raises(UsageError, match="would be removed, with what is on its own disk"):
        lost_state.spare(stack, None, wanted)
    there[:] = [dataclasses.replace(there[0], address="")]
    lost_state.spare(stack, None, wanted)


@pytest.mark.parametrize("op", ["create", "replace", "same"])
def test_up_looks_for_such_nodes_before_it_makes_one(tmp_path, monkeypatch, op):
    type_ = "pulumi-python:dynamic/gpubed:Node"
    step = ResourceEvent(op, "planned", "urn::other-0", type_, "other-0")
    wanted = sample_plan(nodes=[{"name": "other", "count": 1}])
    stack = LostStack(Project(tmp_path).cluster("lab"))
    monkeypatch.setattr(stack, "has_resources", lambda: True)
    planned = Result({op: 1}, (step,), {}, 0.0)
    monkeypatch.setattr(stack, "preview", lambda _: planned, raising=False)
    monkeypatch.setattr(audit, "unrecorded", lambda *_: [at(wanted.nodes[0].control_address)])
    local = registry.bound("local", stack.paths)
    monkeypatch.setattr(type(local), "refusals", lambda *_: [])
    if op == "same":
        assert up._look_ahead(up.Run(wanted, local, stack, None, pytest.fail), None) is planned
        return
    with pytest.raises(UsageError, match="now gives to other-0"):
        up._look_ahead(up.Run(wanted, local, stack, None, pytest.fail), None)


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


def test_what_is_missing_here_is_said_before_that_the_testbed_is_silent(call, monkeypatch):
    def silent(*_):
        raise SILENT

    local = kind("local")
    monkeypatch.setattr(local, "existing", silent)
    monkeypatch.setattr(local, "doctor", lambda *_: [Finding("x", False, "no certificate", "get")])
    refused = call("up", "lab", "-y", "--engine", "embedded").exception
    assert (refused.exit_code, refused.message, refused.hint) == (3, "no certificate", "get")


def test_a_plan_says_what_would_be_taken_over_and_why_up_would_stop(call, tmp_path, monkeypatch):
    local = kind("local")
    monkeypatch.setattr(local, "existing", lambda *_: [DATA])
    monkeypatch.setattr(type(registry.backend("local")), "warnings", lambda *_: [])
    taken = Finding("x", False, "10.1.2.0/24 is used by another", "name another subnet")
    monkeypatch.setattr(local, "fits", lambda *_: [taken])
    empty = Result({}, (), {}, 0.0)
    monkeypatch.setattr(stacks.Stack, "preview", lambda *_, **__: empty)

    def planned():
        done = call("plan", "lab", "--json", "--engine", "embedded")
        assert done.return_value == 4, "what others have is said by a plan as by an up"
        return json.loads(done.stdout)["warnings"]

    assert not any("taken over" in line for line in planned()), "nothing is known of it"
    record.keep_uuid(Project(tmp_path).cluster("lab"), UUID)
    assert "volume gpubed-lab-shared was there already and is taken over" in planned()

    monkeypatch.setattr(local, "existing", lambda *_: NODES)
    assert "container gpubed-lab-1: what is on its own disk is lost" in call("plan", "lab").stderr

    def silent(*_):
        raise SILENT

    monkeypatch.setattr(local, "existing", silent)
    assert any(line.startswith("`up` would stop: ") and "answers 503" in line for line in planned())


MARKS = {f"10.0.0.{n + 1}": f"node-{n}" for n in range(3)}
HOSTS = "version: 1\nbackend: {{type: static, user: me, hosts: {{node: [{hosts}]}}}}\n"
REST = "nodes: [{{name: node, count: {count}}}]\nnetworks: {{control: {{subnet: 10.0.0.0/24}}}}\n"


@pytest.mark.parametrize(
    ("order", "moved", "served"),
    [("123", "", True), ("321", "node-2 node-0", False), ("23", "node-1 node-2", False)],
    ids=["as they were", "reordered", "the first is gone"],
)
def test_own_hosts_in_another_order_are_asked_about(tmp_path, monkeypatch, order, moved, served):
    """With the folder that the first one served: the hosts become one another."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = Project(tmp_path).cluster("own")
    paths.spec.parent.mkdir(parents=True)
    hosts = ", ".join(f"{{address: 10.0.0.{n}}}" for n in order)
    paths.spec.write_text((HOSTS + REST).format(hosts=hosts, count=len(order)))

    def look(_self, _config, host, _name, _do):
        node = MARKS[str(host.address)]
        return SimpleNamespace(
            owner={"uuid": UUID, "cluster": "own", "node": node, "id": f"{node}-0a"}
        )

    monkeypatch.setattr(kind("static"), "_on", look)
    record.keep_uuid(paths, UUID)
    served_by = {"node": "node-0", "id": "node-0-0a", "path": "/shared", "backend": "static"}
    mark(paths, served=served_by)
    wanted, asked = load_plan(paths.spec), []
    stack, own = LostStack(paths), registry.bound("static", paths)
    monkeypatch.setattr(type(own), "refusals", lambda *_: [])
    up._look_ahead(up.Run(wanted, own, stack, None, asked.extend), None)
    line = "/shared, which node-0 serves from its own disk: what is on it stays on its host, and is"
    assert [said.startswith(line) for said in asked] == ([] if served else [True])
    asked.clear()
    lost_state.mind(stack, own, wanted, asked.extend)
    assert [said.partition(":")[0] for said in asked] == [f"node {name}" for name in moved.split()]


def test_a_plan_loses_no_folder_whose_node_is_taken_over(call, tmp_path, monkeypatch):
    """Without a state, a preview makes everything anew."""
    local, paths = kind("local"), Project(tmp_path).cluster("lab")
    monkeypatch.setattr(type(registry.backend("local")), "warnings", lambda *_: [])
    monkeypatch.setattr(local, "fits", lambda *_: [])
    monkeypatch.setattr(local, "refusals", lambda *_: [])
    type_ = "pulumi-python:dynamic/gpubed:Node"
    made = ResourceEvent("create", "planned", f"urn::{type_}::node-0", type_, "node-0")
    monkeypatch.setattr(stacks.Stack, "preview", lambda *_, **__: Result({}, (made,), {}, 0.0))
    paths.spec.write_text(
        "version: 1\nbackend: {type: local, runtime: vm}\nnodes: [{count: 1}]\n"
        "storage: {shared: {provider: nfs}}\n"
    )
    record.keep_uuid(paths, UUID)
    served_by = {"node": "node-0", "id": "c0", "path": "/shared", "backend": "local"}
    mark(paths, served=served_by)

    def lost():
        return json.loads(call("plan", "lab", "--json", "--engine", "embedded").stdout)["lost"]

    monkeypatch.setattr(local, "existing", lambda *_: NODES[:1])
    assert lost() == []
    monkeypatch.setattr(local, "existing", lambda *_: [])
    assert lost()[0].startswith("/shared, which node-0 serves from its own disk: what is on it is")


def test_what_a_killed_first_run_left_is_not_called_lost(lost):
    assert lost(interrupted=True) == []


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


def test_a_node_that_is_in_no_state_goes_only_when_that_is_approved(monkeypatch):
    """It may be of a state that was put back, and not of the run that was killed."""
    removed = []
    monkeypatch.setattr(audit, "unrecorded", lambda *_, **__: NODES)
    monkeypatch.setattr(audit, "remove_unrecorded", lambda *_: removed.extend(NODES) or ["x"])

    def refuse(_):
        raise UsageError("not confirmed", "-y")

    with pytest.raises(UsageError):
        up._remove_leftovers(up.Run(None, None, LostStack(None), None, refuse))
    assert removed == []
    up._remove_leftovers(up.Run(None, None, LostStack(None), None, lambda _: None))
    assert removed == NODES


def test_audit_leads_out_of_a_second_cluster_that_is_half_made(call, tmp_path):
    paths = Project(tmp_path).cluster("lab")
    record.keep_uuid(paths, UUID.replace("6f0c", "0000"))
    first = "first remove what is half made: gpubed down lab\n"
    offer = f"gpubed audit lab --adopt --uuid {UUID}"
    said = call("audit", "lab", "--engine", "embedded").stdout
    assert first in said
    assert offer in said
    paths.allocation.write_text("{}")
    said = call("audit", "lab", "--engine", "embedded").stdout
    assert "gpubed down" not in said, "one that came to its end is not to be removed"
    assert offer not in said


def test_a_node_is_not_moved_to_another_address_where_the_state_is_lost(lost, monkeypatch):
    """It would be replaced; `plan` said that it is made, and `up` failed half-way."""
    wanted = sample_plan(nodes=[{"count": 2}])
    there = [
        Existing("container", f"gpubed-lab-{node.name}", "c", UUID, node=node.name, address=address)
        for node, address in zip(wanted.nodes, ("10.1.2.3", "10.1.2.4"), strict=True)
    ]
    monkeypatch.setattr(kind("local"), "existing", lambda *_: there)
    with pytest.raises(UsageError, match=r"has the address 10\.1\.2\.3, the specification gives"):
        lost(nodes=[{"count": 2}])


def test_the_status_of_a_cluster_that_is_not_up_is_a_document_all_the_same(call):
    done = call("status", "lab", "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["state"], told["nodes"]) == ("gpubed/status/1", "absent", [])
    assert done.exception.exit_code == 1
