"""`gpubed plan` as a user runs it: a real process and the embedded engine."""

import contextlib
import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import preview
from gpubed.core import runlock
from gpubed.core.errors import Locked
from gpubed.core.paths import Project
from gpubed.engines import stack as stacks
from gpubed.engines.embedded import ResourceEvent, Result
from support.cluster import Cluster

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path):
    # A name of its own: the addresses that it picks should be nobody's on this machine.
    return Cluster(tmp_path, "planned", configure=False)


def log(cluster):
    (path,) = (cluster.state / "logs").glob("*-plan.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_plan_alone_leaves_no_folder_of_the_cluster(cluster):
    """Else `gpubed status` knew of a cluster that never was, once its specification is gone."""
    cluster.call("check")
    cluster.call("plan", "--engine", "embedded")
    assert not cluster.state.exists()


def test_every_step_is_in_the_log(cluster):
    cluster.state.mkdir(parents=True)
    document = cluster.json("plan", "--engine", "embedded")
    assert document["changes"]
    steps = [event for event in log(cluster) if event["what"] == "resource"]
    assert {step["status"] for step in steps} == {"planned"}
    assert {c["urn"] for c in document["changes"]} <= {step["urn"] for step in steps}


def test_the_roles_are_named_with_the_nodes_that_they_come_to(tmp_path):
    cluster = Cluster(tmp_path, "planned")
    names = ["node-0", "node-1", "node-2"]
    found = cluster.json("plan", "--engine", "embedded")["roles"]
    assert {"name": "firewall", "nodes": names} in found
    said = cluster.call("plan", "--engine", "embedded").stdout
    assert f"apply    {', '.join(role['name'] for role in found)} on {', '.join(names)}" in said


def test_bare_nodes_get_no_roles(cluster):
    assert cluster.json("plan", "--engine", "embedded")["roles"] == []


def test_a_testbed_without_leases_costs_no_node_hours(cluster):
    assert "node-hours" not in cluster.call("plan", "--engine", "embedded").stdout
    document = cluster.json("plan", "--engine", "embedded")
    assert (document["node_hours"], document["lease"]) == (None, None)


def test_an_error_of_many_lines_is_shown_whole(cluster):
    program = cluster.root / "stacks" / "cluster" / "__main__.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "from gpubed.core.errors import Refused\n"
        "raise Refused('there is no flavor huge\\n  there is no image old', 'take others')\n"
    )
    done = cluster.call("plan", "--engine", "embedded", rc=1)
    assert "there is no flavor huge" in done.stderr
    assert "there is no image old" in done.stderr
    assert "Traceback" not in done.stderr.partition("error:")[2]


def test_beside_a_run_that_changes_the_cluster_nothing_is_planned(cluster):
    with runlock.hold(cluster.state, "down"):
        said = cluster.call("plan", "--engine", "embedded", rc=5).stderr
        assert "planned is held by `gpubed down` (pid " in said
    cluster.call("plan", "--engine", "embedded")


def test_a_plan_on_a_state_that_began_to_move_is_none(cluster, monkeypatch):
    held = contextlib.ExitStack()

    def look(*_, **__):
        held.enter_context(runlock.hold(cluster.state, "up"))
        return Result({}, (), {}, 0.0)

    monkeypatch.setattr(stacks.Stack, "preview", look)
    with held, pytest.raises(Locked, match="planned is held by `gpubed up`"):
        preview.preview(Project(cluster.root).cluster("planned"), "embedded")


def test_what_stays_is_counted_as_what_is_made(cluster, monkeypatch):
    """Of 11 that were to be made, 12 stayed: Pulumi's own record was one of them."""
    assert "2 change(s); 0 resource(s) stay" in planned(cluster, monkeypatch, op="create")
    assert "0 change(s); 2 resource(s) stay" in planned(cluster, monkeypatch, op="same")


def planned(cluster, monkeypatch, *, op):
    """Plan where the engine, a STAND-IN, says the same of a stack and two resources."""
    types = {"lab": "pulumi:pulumi:Stack", "key": "gpubed:Key", "node-0": "gpubed:Node"}
    steps = tuple(
        ResourceEvent(op, "planned", f"urn:pulumi:planned::gpubed::{type_}::{name}", type_, name)
        for name, type_ in types.items()
    )
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.root))
    monkeypatch.setattr(
        stacks.Stack, "preview", lambda *_, **__: Result({op: len(steps)}, steps, {}, 0.0)
    )
    done = CliRunner().invoke(
        cli.build("plan"),
        ["plan", "planned", "--engine", "embedded"],
        standalone_mode=False,
        catch_exceptions=False,
    )
    return done.stdout


def test_nodes_are_in_the_order_of_their_numbers(tmp_path):
    cluster = Cluster(tmp_path, "planned", configure=False)
    cluster.edit(lambda spec: spec["nodes"][0].update(count=11))
    changes = cluster.json("plan", "--engine", "embedded")["changes"]
    nodes = [change["urn"].rsplit("::", 1)[-1] for change in changes if "Node" in change["urn"]]
    assert [name for name in nodes if name.startswith("node-")] == [f"node-{n}" for n in range(11)]
