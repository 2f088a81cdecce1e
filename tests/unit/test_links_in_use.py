"""Who may use a cluster's links while they are measured, and who counts as somebody else."""

from types import SimpleNamespace

import pytest

from gpubed.checks import registry, verify
from gpubed.checks.context import Context
from gpubed.cluster import setup
from gpubed.core import runlock
from gpubed.core.errors import Locked
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.verification import Check
from support.samples import granted_cluster, sample_allocation, sample_plan


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return granted_cluster(tmp_path)


@pytest.fixture
def check(cluster, monkeypatch):
    """A function that verifies as `up` does; the only check is one's own."""
    plan = sample_plan()

    def run(look):
        def one(_context):
            look()
            yield Check(id="x", result="pass")

        monkeypatch.setattr(registry, "functions", lambda: [one])
        monkeypatch.setattr(registry, "subject", lambda _: "x")
        monkeypatch.setattr(Context, "simulated", frozenset())
        monkeypatch.setattr(verify, "SSH", lambda *_: _Nobody())
        monkeypatch.setattr(setup, "publish_metrics", lambda *_: None)
        return setup.verify_cluster(Cluster(cluster, plan, sample_allocation(plan)))

    return run


class _Nobody:
    """A node that answers nothing: a STAND-IN."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def run(self, *_words, **_options):
        return SimpleNamespace(stdout="", exit_code=0)


def test_no_run_begins_during_the_checks_of_an_up(cluster, check):
    """Nodes are ready by then; their allreduce and the job would both be measured."""
    seen = []

    def look():
        with pytest.raises(Locked, match="`gpubed up`") as refused:
            runlock.measuring(cluster.state, "run", shared=True).__enter__()
        seen.append(refused.value.hint)

    check(look)
    assert seen == ["wait for its end; gpubed runs lab lists the active runs"]
    assert runlock.measurer(cluster.state) is None
