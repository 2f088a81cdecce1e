"""Which nodes a job runs on; the head is a STAND-IN that keeps what it is told."""

from types import SimpleNamespace

import pytest

from gpubed import jobs, registry
from gpubed.errors import UsageError
from gpubed.launchers import leftovers
from gpubed.paths import ClusterPaths, Project
from support.samples import sample_allocation, sample_plan


class Head:
    """Keeps files by name; its folder comes back empty."""

    def __init__(self, *_):
        self.files = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def put(self, *_):
        pass

    def get(self, *_):
        pass

    def write(self, path, text):
        self.files[path.rsplit("/", 1)[-1]] = text


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A function that runs job allreduce on nodes with so many ranks."""

    def on(*slots):
        head = Head()
        monkeypatch.setattr(jobs, "SSH", lambda *_: head)
        monkeypatch.setattr(leftovers, "end", lambda *_: [])
        starter = SimpleNamespace(run=lambda *_: 0)
        monkeypatch.setattr(registry, "launcher", lambda _: starter)
        plan = sample_plan(nodes=[{"name": "node", "count": len(slots)}])
        allocation = sample_allocation(plan)
        nodes = tuple(
            node.model_copy(update={"slots": ranks})
            for node, ranks in zip(allocation.nodes, slots, strict=True)
        )
        allocation = allocation.model_copy(update={"nodes": nodes})
        result = jobs.run(ClusterPaths(Project(tmp_path), "lab"), plan, allocation, "allreduce", {})
        return result, head.files

    return on


def test_a_node_without_ranks_is_in_no_hostfile(run):
    result, files = run(0, 4, 2)
    assert files["hostfile"] == "node-1 slots=4\nnode-2 slots=2\n"
    assert result.world_size == 6


def test_without_any_rank_nothing_is_started(run):
    with pytest.raises(UsageError, match="no node that ranks could start on"):
        run(0, 0)
