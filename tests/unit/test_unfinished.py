"""What is said of a cluster whose last configuration is at work, was killed, or failed."""

import os
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import setup
from gpubed.configuration import unfinished
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster
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
    with pytest.raises(GpubedError, match="was not completed") as caught:
        unfinished.require_none(cluster)
    assert caught.value.hint == "gpubed up lab completes it"


def test_a_run_at_work_is_named(cluster):
    with runlock.hold(cluster.state, "up"), unfinished.noted(cluster):
        assert unfinished.state(cluster) == "configuring"
        with pytest.raises(GpubedError, match=f"`gpubed up` .pid {os.getpid()}.* is running"):
            unfinished.require_none(cluster)


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
        monkeypatch.setattr(setup, "verify_cluster", stand_in("verify_cluster"))
        monkeypatch.setattr(setup, "render", stand_in("render"))
        monkeypatch.setattr("gpubed.nodes.ssh.SSH.wait_ready", stand_in("wait_ready"))
        monkeypatch.setattr("gpubed.configuration.due.now", lambda *_: {})
        plan = sample_plan(configure=configure)
        granted = sample_allocation(plan).model_copy(update={"backend": backend})
        setup.set_up(Cluster(cluster, plan, granted))

    return run


@pytest.mark.parametrize("configure", [True, False])
def test_handed_over_is_finished(cluster, hand_over, configure):
    hand_over(configure=configure)
    assert unfinished.state(cluster) == ""


def test_a_node_that_does_not_answer_leaves_it_unfinished(cluster, hand_over):
    with pytest.raises(GpubedError):
        hand_over(wait_ready=GpubedError("no"))
    assert unfinished.state(cluster) == "interrupted"


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
