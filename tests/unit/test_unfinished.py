"""What is said of a cluster whose last configuration is at work, was killed, or failed."""

import os
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import configuration_driver, drivers, handover
from gpubed.configuration import unfinished
from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import Project
from gpubed.nodes.cluster import Cluster
from support.known import mark
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def cluster(tmp_path):
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


def test_what_came_to_its_end_can_be_used(cluster):
    assert unfinished.state(cluster) == ""
    with unfinished.noted(cluster):
        pass
    assert unfinished.state(cluster) == ""
    unfinished.require_none(cluster)


def test_a_run_that_was_cut_off_is_gone_on_with(cluster):
    with pytest.raises(RuntimeError), unfinished.noted(cluster):
        raise RuntimeError
    assert unfinished.state(cluster) == "interrupted"
    with pytest.raises(GpubedError, match="did not come to its end") as caught:
        unfinished.require_none(cluster)
    assert caught.value.hint == "gpubed up lab goes on with it"


def test_a_run_at_work_is_named(cluster):
    with runlock.hold(cluster.state, "up"), unfinished.noted(cluster):
        assert unfinished.state(cluster) == "configuring"
        with pytest.raises(GpubedError, match=f"`gpubed up` .pid {os.getpid()}.* is at work"):
            unfinished.require_none(cluster)


@pytest.mark.parametrize("verb", ["audit", "down", "configure --check"])
def test_who_holds_the_cluster_and_applies_no_role_is_not_configuring_it(cluster, verb):
    mark(cluster, unfinished="roles")
    with runlock.hold(cluster.state, verb):
        assert unfinished.state(cluster) == "interrupted"
        with pytest.raises(GpubedError, match="did not come to its end"):
            unfinished.require_none(cluster)


@pytest.mark.parametrize("verb", ["up", "configure"])
def test_who_goes_on_with_it_is_configuring(cluster, verb):
    mark(cluster, unfinished="roles")
    with runlock.hold(cluster.state, verb):
        assert unfinished.state(cluster) == "configuring"


def test_a_holder_without_a_name_may_be_configuring(cluster):
    """A full disk leaves the lock empty."""
    mark(cluster, unfinished="roles")
    with runlock.hold(cluster.state, "up"):
        (cluster.state / "lock").write_text("")
        assert unfinished.state(cluster) == "configuring"


@pytest.mark.parametrize("before", [True, False])
def test_a_part_that_is_done_leaves_what_was_noted_before(cluster, before):
    """`gpubed configure --tags base` is no end of an `up` that was cut off."""
    if before:
        mark(cluster, unfinished="roles")
    with unfinished.noted(cluster, whole=False):
        assert record.read(cluster).unfinished
    assert bool(record.read(cluster).unfinished) == before


@pytest.fixture
def hand_over(cluster, monkeypatch):
    """A function that hands bare or other nodes over; on the way are STAND-INS that may fail."""

    def run(configure=True, backend="local", **failing):
        def stand_in(name):
            def do(*_, **__):
                if name in failing:
                    raise failing[name]

            return do

        monkeypatch.setattr("gpubed.configuration.configure.configure", stand_in("configure"))
        monkeypatch.setattr(handover, "verify_cluster", stand_in("verify_cluster"))
        monkeypatch.setattr(handover, "render", stand_in("render"))
        monkeypatch.setattr("gpubed.nodes.ssh.SSH.wait_ready", stand_in("wait_ready"))
        monkeypatch.setattr("gpubed.configuration.due.now", lambda *_: {})
        plan = sample_plan(configure=configure)
        granted = sample_allocation(plan).model_copy(update={"backend": backend})
        handover.hand_over(Cluster(cluster, plan, granted))

    return run


@pytest.mark.parametrize("configure", [True, False])
def test_handed_over_is_finished(cluster, hand_over, configure):
    hand_over(configure=configure)
    assert unfinished.state(cluster) == ""


def test_a_node_that_does_not_answer_leaves_it_unfinished(cluster, hand_over):
    with pytest.raises(GpubedError):
        hand_over(wait_ready=GpubedError("no"))
    assert unfinished.state(cluster) == "interrupted"


@pytest.mark.parametrize(("backend", "waited_for"), [("openstack", True), ("local", False)])
def test_bare_servers_that_still_boot_are_waited_for(cluster, hand_over, backend, waited_for):
    refused = pytest.raises(GpubedError) if waited_for else nullcontext()
    with refused:
        hand_over(configure=False, backend=backend, wait_ready=GpubedError("no"))
    assert unfinished.state(cluster) == ("interrupted" if waited_for else "")


def test_a_cluster_whose_checks_fail_can_be_used_to_find_out_why(cluster, hand_over):
    with pytest.raises(GpubedError):
        hand_over(verify_cluster=GpubedError("1 of 9 checks failed"))
    assert unfinished.state(cluster) == ""


@pytest.mark.parametrize("verb", ["up", "configure"])
def test_nodes_are_not_judged_while_roles_are_applied_to_them(cluster, verb, monkeypatch):
    cluster.spec.parent.mkdir(parents=True)
    cluster.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n")
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.project.root))
    marked = unfinished.noted(cluster) if verb == "up" else nullcontext()
    with runlock.hold(cluster.state, verb), marked:
        done = CliRunner().invoke(cli.build(), ["verify", "lab"], standalone_mode=False)
    assert isinstance(done.exception, Locked)
    assert f"lab is held by `gpubed {verb}` (pid {os.getpid()}" in done.exception.message


def test_the_checks_of_another_run_are_no_reason_not_to_verify(cluster):
    with runlock.hold(cluster.state, "up"):
        unfinished.require_still(cluster)
    mark(cluster, unfinished="roles")  # a run was killed: it may be looked at
    unfinished.require_still(cluster)


def test_up_goes_on_with_a_configure_that_was_cut_off_before_any_role(cluster, monkeypatch):
    """All roles are as recorded then: nothing but the note tells that something was begun."""
    plan = sample_plan()
    granted = sample_allocation(plan)
    monkeypatch.setattr(configuration_driver, "_paths", lambda _: cluster)
    monkeypatch.setattr(configuration_driver.ConfigurationDriver, "_stale", lambda *_: set())
    monkeypatch.setattr(configuration_driver, "load_plan", lambda *_: plan)
    monkeypatch.setattr(configuration_driver.inventory, "is_rendered", lambda *_: True)
    inputs = {"configure": True, "allocation": granted.model_dump(mode="json"), "cluster": "lab"}
    driver = drivers.driver("configuration")
    assert driver.diff({}, inputs, inputs).update == []
    mark(cluster, unfinished="roles")
    assert driver.diff({}, inputs, inputs).update == ["unfinished"], "as `plan` sees it"
    with runlock.hold(cluster.state, "up"):
        assert driver.diff({}, inputs, inputs).update == ["unfinished"]
    bare = {**inputs, "configure": False}
    assert driver.diff({}, bare, bare).update == []
