"""What is said of a cluster whose last `up` is at work, was killed, or failed."""

import os

import pytest

from gpubed import runlock, unfinished
from gpubed.errors import GpubedError
from gpubed.paths import Project


@pytest.fixture
def cluster(tmp_path):
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


def verify(cluster, seconds):
    """Write a verification that is so much newer than the run's beginning."""
    cluster.verification.write_text("{}")
    begun = cluster.unfinished.stat().st_mtime_ns if cluster.unfinished.exists() else 0
    os.utime(cluster.verification, ns=(0, begun + seconds * 10**9))


def test_what_came_to_its_end_can_be_used(cluster):
    assert unfinished.state(cluster) == ""
    unfinished.begin(cluster)
    unfinished.end(cluster)
    assert unfinished.state(cluster) == ""
    unfinished.require_none(cluster)


def test_a_run_that_was_cut_off_is_gone_on_with(cluster):
    unfinished.begin(cluster)
    verify(cluster, -5)  # that of a run before
    assert unfinished.state(cluster) == "interrupted"
    with pytest.raises(GpubedError, match="did not come to its end") as caught:
        unfinished.require_none(cluster)
    assert caught.value.hint == "gpubed up lab goes on with it"


def test_a_cluster_whose_checks_fail_can_be_used_to_find_out_why(cluster):
    unfinished.begin(cluster)
    verify(cluster, 5)
    assert unfinished.state(cluster) == ""


def test_a_run_at_work_is_named(cluster):
    with runlock.hold(cluster.state, "up"):
        unfinished.begin(cluster)
        assert unfinished.state(cluster) == "configuring"
        with pytest.raises(GpubedError, match=f"`gpubed up` .pid {os.getpid()}.* is at work"):
            unfinished.require_none(cluster)
    assert unfinished.state(cluster) == "interrupted"
