"""An engine that ended between the nodes and the configuration is known to whoever looks later."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli, resources
from gpubed.cluster import configuration_driver, drivers, up
from gpubed.configuration import unfinished
from gpubed.core.errors import GpubedError
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.testbeds import registry
from support.known import mark
from support.samples import granted_cluster, sample_allocation, sample_plan

GIVEN = {"backend": "local", "cluster": "lab", "result": None}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster of three nodes that is up, as the provider finds it."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr("gpubed.testbeds.resources._made_on", lambda _: None)
    return granted_cluster(tmp_path)


@pytest.fixture
def provider(cluster, monkeypatch):
    """Calls a method of the provider; its driver is a STAND-IN that notes what it found."""

    class Driver:
        def create(self, _inputs):
            found.append(unfinished.state(cluster))
            return "id", {}

        def update(self, *_):
            found.append(unfinished.state(cluster))
            if fails:
                raise GpubedError("no")
            return {}

    found, fails = [], []

    def call(method, kind, name, *, failing=False):
        found[:], fails[:] = [], [True] if failing else []
        monkeypatch.setattr("gpubed.testbeds.resources._driver", lambda _: Driver())
        props = {**GIVEN, "kind": kind, "name": name}
        given = (props,) if method == "create" else ("id", props, props)
        getattr(resources.Provider(), method)(*given)
        return list(found)

    return call


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("update", "node", "node-0"),
        ("create", "node", "node-1"),  # made again: it was replaced, or somebody removed it
        ("update", "slice", "slice"),
    ],
)
def test_a_node_that_is_changed_leaves_the_cluster_unfinished(
    cluster, provider, method, kind, name
):
    assert provider(method, kind, name) == ["interrupted"], "from before the change"
    assert unfinished.state(cluster) == "interrupted"
    with pytest.raises(GpubedError, match="did not come to its end"):
        unfinished.require_none(cluster)


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("create", "node", "node-3"),  # nobody uses it yet, and the others stay as they are
        ("create", "image", "debian-12"),
        ("create", "network", "experiment"),
        ("update", "capacity", "capacity"),
    ],
)
def test_what_changes_no_node_in_use_notes_nothing(cluster, provider, method, kind, name):
    assert provider(method, kind, name) == [""]
    assert unfinished.state(cluster) == ""


def test_the_first_up_notes_nothing(cluster, provider):
    """Without an allocation, nobody can use anything: `status` says that it is made in part."""
    cluster.allocation.unlink()
    assert provider("create", "node", "node-0") == [""]


def test_a_change_that_fails_is_one_that_may_have_changed_something(cluster, provider):
    with pytest.raises(GpubedError, match="no"):
        provider("update", "node", "node-0", failing=True)
    assert unfinished.state(cluster) == "interrupted"


@pytest.mark.parametrize("configure", [True, False])
def test_the_configuration_follows_in_the_same_run(cluster, monkeypatch, configure):
    """Also where nothing of the allocation is another, as after a change of memory."""
    plan = sample_plan()
    monkeypatch.setattr(configuration_driver.ConfigurationDriver, "_stale", lambda *_: set())
    monkeypatch.setattr(configuration_driver, "load_plan", lambda *_: plan)
    monkeypatch.setattr(configuration_driver.inventory, "is_rendered", lambda *_: True)
    granted = sample_allocation(plan).model_dump(mode="json")
    inputs = {"configure": configure, "allocation": granted, "cluster": "lab"}
    driver = drivers.driver("configuration")
    assert driver.diff({}, inputs, inputs).update == []
    mark(cluster, unfinished="nodes")
    assert driver.diff({}, inputs, inputs).update == ["unfinished"]
    with unfinished.noted(cluster):
        pass
    assert driver.diff({}, inputs, inputs).update == []


def test_configure_does_not_end_what_an_engine_began(cluster, monkeypatch):
    """Roles change no link: `gpubed configure` would call links right that nobody has finished."""
    done = SimpleNamespace(phases={}, changed={}, log=None)
    monkeypatch.setattr("gpubed.configuration.configure.configure", lambda *_, **__: done)
    monkeypatch.setattr("gpubed.cluster.handover.render", lambda *_: [])
    mark(cluster, unfinished="nodes")
    told = CliRunner().invoke(cli.build(), ["configure", "lab"], standalone_mode=False)
    assert "gpubed up lab goes on with it" in told.output, told.exception
    assert unfinished.state(cluster) == "interrupted"
    mark(cluster, unfinished="")
    mark(cluster, unfinished="roles")  # what `configure` itself began
    CliRunner().invoke(cli.build(), ["configure", "lab"], standalone_mode=False)
    assert unfinished.state(cluster) == ""


def step(kind, op="update", status="planned"):
    return ResourceEvent(op, status, f"urn::{kind}::x", f"openstack:networking:{kind}", "x")


@pytest.mark.parametrize(
    ("kind", "acts", "state"),
    [
        ("QosBandwidthLimitRule", True, "interrupted"),
        ("QosBandwidthLimitRule", False, ""),  # it ended before it did anything
        ("SecGroupRule", True, ""),
    ],
)
def test_what_a_plugin_changes_is_noted_by_up(cluster, kind, acts, state):
    """The plugin is a STAND-IN that is cut off; its resources cannot note anything themselves."""
    seen = []

    def cut_off(sink):
        seen.append(unfinished.state(cluster))
        if acts:
            sink(step(kind, status="started"))
        raise KeyboardInterrupt

    plan = Result({"update": 1}, (step(kind),), {}, 0.1)
    stack = SimpleNamespace(paths=cluster, up=cut_off)
    testbed = SimpleNamespace(backend=registry.backend("openstack"))
    with pytest.raises(KeyboardInterrupt):
        up._applied(up.Run(None, testbed, stack, None, None), plan)
    assert seen == ["interrupted" if kind.startswith("Qos") else ""]
    assert unfinished.state(cluster) == state


def test_the_report_says_that_nodes_may_be_others_by_now(cluster):
    mark(cluster, unfinished="nodes")
    done = CliRunner().invoke(cli.build(), ["report", "lab"], standalone_mode=False)
    assert "the last configuration of lab did not come to its end" in done.output
