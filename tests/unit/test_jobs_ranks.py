"""Which nodes a job runs on; the head is a STAND-IN that keeps what it is told."""

from types import SimpleNamespace

import pytest

from gpubed.core.paths import ClusterPaths, Project
from gpubed.jobs import execution, launchers, leftovers
from gpubed.jobs.runs.record import Request
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan
from support.stand_in_head import Head

pytestmark = pytest.mark.process


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A function that runs job allreduce on nodes with so many ranks."""

    def on(*slots, rate_bps=None):
        monkeypatch.setattr(Head, "metrics", {})
        head, started = Head(), []
        monkeypatch.setattr(execution, "SSH", lambda *_: head)
        monkeypatch.setattr(leftovers, "end", lambda *_: [])
        starter = SimpleNamespace(run=lambda *given: started.append(given[1]) or 0)
        monkeypatch.setattr(launchers, "named", lambda _: starter)
        plan = sample_plan(nodes=[{"name": "node", "count": len(slots)}])
        allocation = sample_allocation(plan)
        nodes = tuple(
            node.model_copy(update={"slots": ranks})
            for node, ranks in zip(allocation.nodes, slots, strict=True)
        )
        allocation = allocation.model_copy(update={"nodes": nodes})
        if rate_bps:
            network = allocation.experiment.model_copy(update={"rate_bps": rate_bps})
            allocation = allocation.model_copy(update={"experiment": network})
        cluster = ClusterPaths(Project(tmp_path), "lab")
        result = execution.run(Cluster(cluster, plan, allocation), Request(job="allreduce"))
        return result, head, started

    return on


def test_a_node_without_ranks_is_in_no_hostfile(run):
    result, head, _ = run(0, 4, 2)
    assert head.files["hostfile"] == "node-1 slots=4\nnode-2 slots=2\n"
    assert result.world_size == 6


@pytest.mark.parametrize(("held", "told"), [(None, "200000000"), (50_000_000, "50000000")])
def test_a_job_knows_what_links_are_held_to_for_it(run, held, told):
    """A point of a campaign may hold them to another rate than the declared one."""
    _, _, started = run(1, 1, rate_bps=held)
    assert started[0].environment.get("GPUBED_RATE_BPS") == told
