"""Which node serves the shared storage is kept, so that no plan takes it away without a word.

Nothing is served here: what becomes of nodes is a STAND-IN.
"""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import costs, damage, handover, up
from gpubed.cluster.condition import Condition
from gpubed.configuration import served_folder
from gpubed.core import record
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from gpubed.engines import stack as stacks
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.base import Finding
from support.bound import kind
from support.known import mark
from support.samples import sample_allocation, sample_plan

NODE = "pulumi-python:dynamic/gpubed:Node"
VMS = {"type": "local", "runtime": "vm"}


def plan(*names, backend=VMS, **shared):
    shared = {"provider": "nfs", **shared}
    groups = [{"name": name, "count": 1} for name in names or ("node", "other")]
    return sample_plan(nodes=groups, backend=backend, storage={"shared": shared})


def step(op, name, type_=NODE):
    urn = f"urn:pulumi:lab::gpubed::gpubed:local:Cluster${type_}::{name}"
    return ResourceEvent(op, "planned", urn, type_, name)


@pytest.fixture
def cluster(tmp_path):
    """A cluster whose head, node-0, has served /shared."""
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    wanted = plan()
    served_folder.remember(Cluster(made, wanted, sample_allocation(wanted)))
    return made


def left(cluster, wanted, *steps):
    return served_folder.left_behind(cluster, wanted, steps)


@pytest.mark.parametrize(
    "steps", [(), (step("same", "node-0"), step("create", "other-1"), step("replace", "other-0"))]
)
def test_who_goes_on_serving_costs_nothing(cluster, steps):
    assert left(cluster, plan(), *steps) == []
    assert left(cluster, plan(path="/data"), *steps) == [], "it is the same folder, elsewhere"


@pytest.mark.parametrize(
    ("wanted", "instead"),
    [
        (plan("other", "node"), "an empty one of other-0 takes its place"),
        (plan(server="other-0"), "an empty one of other-0 takes its place"),
        (plan(provider="volume"), "a volume takes its place"),
    ],
    ids=["another head", "another server", "another provider"],
)
def test_what_another_would_serve_is_said_to_be_left_behind(cluster, wanted, instead):
    assert left(cluster, wanted) == [
        "/shared, which node-0 serves from its own disk: what is on it stays there, and is served "
        f"no more; {instead}"
    ]


@pytest.mark.parametrize("op", ["replace", "delete", "create"])
@pytest.mark.parametrize("type_", [NODE, "openstack:compute/instance:Instance"])
def test_what_goes_with_its_node_is_said_to_be_lost(cluster, op, type_):
    """One that is made has gone before."""
    [said] = left(cluster, plan(), step(op, "node-0", type_))
    assert "what is on it is lost with it; an empty one of node-0 takes its place" in said


def test_an_own_host_keeps_it(cluster):
    hosts = {"node": [{"address": "192.0.2.1"}], "other": [{"address": "192.0.2.2"}]}
    own = {"type": "static", "user": "u", "hosts": hosts}
    wanted = plan(backend=own)
    served_folder.remember(
        Cluster(cluster, wanted, sample_allocation(plan()).model_copy(update={"backend": "static"}))
    )
    assert left(cluster, wanted, step("create", "node-0")) == [], "it is taken in again"
    for op in ("delete", "replace"):  # another host takes its place
        [said] = left(cluster, wanted, step(op, "node-0"))
        assert "what is on it stays on its host, and is served no more" in said


def test_a_cluster_with_a_volume_has_nothing_kept(cluster):
    wanted = plan(provider="volume")
    served_folder.remember(Cluster(cluster, wanted, sample_allocation(wanted)))
    assert not record.read(cluster).served
    assert left(cluster, plan(server="other-0")) == []


def test_what_cannot_be_read_is_not_taken_for_nothing(cluster):
    mark(cluster, served={"node": 1})
    with pytest.raises(Unreadable, match=r"cluster\.json cannot be read: served: ") as caught:
        left(cluster, plan())
    assert caught.value.hint.startswith("remove `served` from it")
    served_folder.remember(Cluster(cluster, plan(), sample_allocation(plan())))
    assert left(cluster, plan()) == []


@pytest.mark.parametrize(
    "text", ['"node": ""', '"id": ""', '"path": "\\u001b[2J/shared"', '"node": "\\u001b[2Jn"']
)
def test_what_is_said_to_a_terminal_is_what_it_should_be(cluster, text):
    kept = record.read(cluster).served
    mark(cluster, served={**kept, **json.loads(f"{{{text}}}")})
    with pytest.raises(Unreadable, match=r"cluster\.json cannot be read"):
        left(cluster, plan())


@pytest.fixture
def former(cluster):
    """The cluster after a version that kept nothing, but for what it rendered and verified."""
    handover.render(Cluster(cluster, plan(), sample_allocation(plan())))
    cluster.verification.write_text("{}")
    mark(cluster, served=None)
    return cluster


def test_a_former_versions_server_is_known_by_its_inventory(former):
    elsewhere = plan(server="other-0", path="/data")
    assert left(former, elsewhere)[0].startswith("/shared, which node-0 serves from its own disk")
    assert left(former, plan()) == []
    handover.render(Cluster(former, elsewhere, sample_allocation(plan())))
    assert left(former, elsewhere)[0].startswith("/shared, which node-0 serves from its own disk")


def test_a_former_versions_server_is_known_though_something_is_damaged_first(former):
    """What tells that roles were applied goes with the first look that finds damage."""
    granted = sample_allocation(plan())
    damage.prepare_repair(Cluster(former, plan(), granted), Condition({"other-0": "cut"}))
    assert not former.verification.exists()
    elsewhere = plan(server="other-0", path="/data")
    assert left(former, elsewhere)[0].startswith("/shared, which node-0 serves from its own disk")


@pytest.mark.parametrize("damage", ["first up", "volume", "no inventory", "cut off"])
def test_where_nothing_was_served_nothing_is_asked(former, damage):
    if damage == "first up":
        former.verification.unlink()
    elif damage == "volume":
        handover.render(Cluster(former, plan(provider="volume"), sample_allocation(plan())))
        mark(former, served=None)
    else:
        former.variables.write_text("nfs_server: [" if damage == "cut off" else "nfs_server: x\n")
    assert left(former, plan(server="other-0")) == []


def test_it_is_said_after_volumes_and_before_nodes(cluster):
    steps = (step("replace", "node-0"), step("delete", "shared", NODE.replace("Node", "Volume")))
    said = costs.lost(Result({}, steps, {}, 0.0), left(cluster, plan(), *steps))
    assert [line.split()[0] for line in said] == ["delete", "/shared,", "replace"]


def test_it_is_kept_once_the_roles_are_applied(cluster, monkeypatch):
    mark(cluster, served=None)
    monkeypatch.setattr(handover, "render", lambda *_: [])
    monkeypatch.setattr(handover, "await_nodes", lambda *_: None)
    monkeypatch.setattr(handover, "verify_cluster", lambda *_: None)

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(handover, "_configure", fail)
    with pytest.raises(RuntimeError):
        handover.hand_over(Cluster(cluster, plan(), sample_allocation(plan())))
    assert not record.read(cluster).served
    monkeypatch.setattr(handover, "_configure", lambda *_: None)
    handover.hand_over(Cluster(cluster, plan(), sample_allocation(plan())))
    assert record.read(cluster).served


class Stack:
    """A STAND-IN for a stack: it has what is planned, or its state is lost."""

    def __init__(self, cluster, has_state):
        self.paths, self._has_state = cluster, has_state

    def has_resources(self):
        return self._has_state

    def preview(self, _):
        return Result({"update": 1}, (step("update", "configuration"),), {}, 0.0)


def test_a_plan_says_what_up_would_refuse(cluster, monkeypatch):
    """Asked where something would be lost, as `up` asks."""
    cluster.spec.parent.mkdir(parents=True)
    cluster.spec.write_text(
        "version: 1\nbackend: {type: local, runtime: vm}\nnodes: [{count: 1}, {name: b, count: 1}]"
        "\nstorage: {shared: {provider: nfs, server: b-0}}\n"
    )
    local, stack = kind("local"), Stack(cluster, True)
    monkeypatch.setattr(stacks.Stack, "preview", lambda *_, **__: stack.preview(None))
    monkeypatch.setattr(local, "fits", lambda *_: [Finding("x", False, "taken", "move")])
    monkeypatch.setattr(type(registry.backend("local")), "warnings", lambda *_: [])
    says = [
        Finding("x", False, "taken"),
        Finding("y", False, "another project", "gpubed doctor CLUSTER"),
    ]
    monkeypatch.setattr(local, "refusals", lambda *_: says)
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.project.root))
    words = ["plan", "lab", "--json", "--engine", "embedded"]
    done = CliRunner().invoke(cli.build(), words, standalone_mode=False)
    assert done.return_value == 4
    told = json.loads(done.stdout)
    assert told["obstacles"] == ["taken", "another project"]
    assert told["remedies"] == ["move", "gpubed doctor lab"]
    assert told["lost"][0].startswith("/shared, which node-0 serves from its own disk")


@pytest.mark.parametrize("has_state", [True, False])
def test_up_asks_before_another_node_serves(cluster, has_state):
    def refuse(lost):
        raise UsageError(lost[0])

    stack, wanted = Stack(cluster, has_state), plan(server="other-0")
    willing = type("Willing", (kind("local"),), {"refusals": lambda *_: []})
    testbed = willing(registry.backend("local"), registry.reach("local", cluster), cluster)
    with pytest.raises(UsageError, match="/shared, which node-0 serves"):
        up._look_ahead(up.Run(wanted, testbed, stack, None, refuse), None)
    up._look_ahead(up.Run(plan(), testbed, stack, None, refuse), None)
