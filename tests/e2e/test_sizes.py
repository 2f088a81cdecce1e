"""Clusters of 1, 2, 3 and 10 nodes, from `up` to `down`, with the time of each step.

`make test-nightly PARTS=sizes`. The figures are printed, kept, and become a section of
docs/reference/performance.md. Nodes are small enough that ten of them fit on a laptop.
"""

import os
import time

import pytest

from support import kept, sizes
from support.cluster import Cluster, labelled, unique

pytestmark = [
    pytest.mark.sizes,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.timeout(3600),  # ten nodes, on a machine that has other things to do
]
MEMORY = "2 GiB"


@pytest.fixture(scope="module")
def caches(docker, tmp_path_factory):
    """Fill this machine's caches, so that no size pays for what all of them use."""
    made = Cluster(tmp_path_factory.mktemp("warm"), unique("warm"))
    made.edit(lambda spec: spec["nodes"][0].update(count=1))
    try:
        made.call("up")
    finally:
        made.call("down", "-y", rc=None)


@pytest.fixture(scope="module")
def measured(caches, request):
    """Seconds by size and step; printed at the end, and kept where every size passed."""
    load, found = f"{os.getloadavg()[0]:.1f}", {}
    yield found
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\n{kept.machine()}, load {load} at the start\n{sizes.table(found)}")
    if all(set(found.get(size, ())) == set(sizes.STEPS) for size in sizes.SIZES):
        kept.measured(sizes.KEPT, load=load, node=MEMORY, seconds=found)


@pytest.mark.parametrize("size", sizes.SIZES)
def test_a_cluster_of_this_size_comes_up_trains_and_leaves_nothing(size, measured, tmp_path):
    nodes = [{"name": "node", "count": size, "machine": {"memory": MEMORY}}]
    cluster = Cluster(tmp_path, unique(f"of{size}"), nodes=nodes)
    took = measured.setdefault(size, {})

    def timed(step, *words):
        started = time.monotonic()
        document = cluster.json(*words)
        took[step] = time.monotonic() - started
        return document

    try:
        assert [node["state"] for node in timed("up", "up")["nodes"]] == ["ready"] * size
        assert timed("verify", "verify")["verification"]["failed"] == 0
        trained = timed("digits", "run", "digits")
        assert (trained["status"], trained["world_size"]) == ("ok", size)
        summed = timed("allreduce", "run", "allreduce")
        assert (summed["status"], summed["world_size"]) == ("ok", size)
        assert timed("down", "down", "-y")["survivors"] == []
        assert labelled(cluster.name) == []
    finally:
        cluster.call("down", "-y", rc=None)
