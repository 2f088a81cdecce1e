"""A plugin of Pulumi's knows no partial success: runs are repeated without what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpubed.cluster import up as ups
from gpubed.core import record
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import ClusterPaths, Project
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry, uncreated_nodes
from gpubed.testbeds.base import Existing, Fault
from gpubed.testbeds.history import Testbeds
from support.bound import kind
from support.samples import sample_plan

PLUGIN_SAYS = "unexpected state 'ERROR', last error: %!s(<nil>)"
NO_HOST = "No valid host was found."
UUID = "aaaaaaaa-0000-4000-8000-000000000000"


class Cloud:
    """A stack whose nodes fail as often as `failures` says; it leaves each in the state ERROR."""

    def __init__(self, cluster: ClusterPaths, plan: ClusterPlan, failures: Mapping[str, int]):
        self.paths, self.plan, self.failures = cluster, plan, dict(failures)
        self.asked: list[list[str]] = []
        self.broken: list[str] = []
        self.uuid = UUID

    def up(self, _: Any) -> list[str]:
        out = uncreated_nodes.read(self.paths, self.plan)
        self.asked.append([node.name for node in self.plan.nodes if node.name not in out])
        self.broken = [name for name in self.asked[-1] if self.failures.get(name)]
        for name in self.broken:
            self.failures[name] -= 1
        if self.broken:
            raise GpubedError(PLUGIN_SAYS)
        return self.asked[-1]

    def has_resources(self) -> bool:
        return False

    def export(self) -> dict[str, Any]:
        result = {"result": {"uuid": UUID}}
        identity = {"type": "gpubed:Identity", "urn": "urn::identity", "outputs": result}
        return {"deployment": {"resources": [identity]}}

    def refresh(self, _: Any) -> None:
        assert not self.broken, "what is left of a server would pass for a node"

    def faults(self) -> list[Fault]:
        return [Fault(n, NO_HOST, Existing("server", n, n, self.uuid)) for n in self.broken]

    def remove(self, thing: Existing) -> None:
        self.broken.remove(thing.name)


@pytest.fixture
def run(tmp_path, monkeypatch):
    cluster = Project(tmp_path).cluster("lab")
    cluster.state.mkdir(parents=True)
    cluster.spec.parent.mkdir(parents=True)
    cluster.spec.write_text("version: 1\n")  # a copy of which is kept

    def make(on_failure: str, failures: Mapping[str, int], least: int = 2) -> tuple[Cloud, Any]:
        group = {"count": 3, "min": least, "on_failure": on_failure}
        plan = sample_plan(nodes=[group])
        cloud: Any = Cloud(cluster, plan, failures)
        testbed = registry.bound("openstack", cluster)
        monkeypatch.setattr(kind("openstack"), "faults", lambda _: cloud.faults())
        monkeypatch.setattr(testbed, "remove", cloud.remove)
        monkeypatch.setattr(kind("openstack"), "unrefreshable", lambda _: None)
        given = ups.Run(plan, testbed, cloud, Testbeds((testbed,)), pytest.fail)
        return cloud, lambda: ups._up(given, None, None, ()).result

    return make


def test_the_rest_go_on_without_one_that_fails_twice_and_the_next_up_asks_again(run):
    cloud, up = run("replace", {"node-2": 2})
    assert up() == ["node-0", "node-1"]
    assert uncreated_nodes.read(cloud.paths, cloud.plan) == {}
    assert up() == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ({"node-0": 1}, "the head:\n  node-0: No valid host"),
        ({"node-1": 2, "node-2": 2}, "(?s)1 of 3 .* at least 2 .*node-1.*node-2: No valid host"),
    ],
)
def test_too_few_are_refused_in_the_testbeds_words_and_leave_no_note(run, failures, words):
    cloud, up = run("replace", failures)
    with pytest.raises(Refused, match=words):
        up()
    assert not cloud.broken
    assert not record.read(cloud.paths).left_out


@pytest.mark.parametrize("on_failure", ["replace", "leave_out"])
def test_a_node_of_another_cluster_of_the_name_is_neither_removed_nor_taken_for_ours(
    run, on_failure
):
    cloud, up = run(on_failure, {"node-1": 1})
    cloud.uuid = UUID.replace("a", "b")
    with pytest.raises(GpubedError, match="unexpected state"):
        up()
    assert cloud.broken == ["node-1"]
    assert not record.read(cloud.paths).left_out
    assert record.read(cloud.paths).killed, "the next `up` reads what the plugin made of it"
