"""Which node serves the shared storage is kept, so that no plan takes it away without a word.

Nothing is served here: what becomes of nodes is a STAND-IN.
"""

import pytest

from gpubed.cluster import up
from gpubed.configuration import shared_storage
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds import registry
from support.bound import kind
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
    shared_storage.remember(Cluster(made, wanted, sample_allocation(wanted)))
    return made


def left(cluster, wanted, *steps):
    return shared_storage.left_behind(cluster, wanted, steps)


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
        "/shared, which node-0 serves from its own disk: its data stay there, and are served "
        f"no more; {instead}"
    ]


@pytest.mark.parametrize("op", ["replace", "delete", "create"])
@pytest.mark.parametrize("type_", [NODE, "openstack:compute/instance:Instance"])
def test_what_goes_with_its_node_is_said_to_be_lost(cluster, op, type_):
    """One that is made has gone before."""
    [said] = left(cluster, plan(), step(op, "node-0", type_))
    assert "its data are lost with it; an empty one of node-0 takes its place" in said


def test_an_own_host_keeps_it(cluster):
    hosts = {"node": [{"address": "192.0.2.1"}], "other": [{"address": "192.0.2.2"}]}
    own = {"type": "static", "user": "u", "hosts": hosts}
    wanted = plan(backend=own)
    shared_storage.remember(
        Cluster(cluster, wanted, sample_allocation(plan()).model_copy(update={"backend": "static"}))
    )
    assert left(cluster, wanted, step("create", "node-0")) == [], "it is taken in again"
    for op in ("delete", "replace"):  # another host takes its place
        [said] = left(cluster, wanted, step(op, "node-0"))
        assert "its data stay on its host, and are served no more" in said


class Stack:
    """A STAND-IN for a stack: it has what is planned, or its state is lost."""

    def __init__(self, cluster, has_state):
        self.paths, self._has_state = cluster, has_state

    def has_resources(self):
        return self._has_state

    def preview(self, _):
        return Result({"update": 1}, (step("update", "configuration"),), {}, 0.0)


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
