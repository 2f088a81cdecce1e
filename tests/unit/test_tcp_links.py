"""Links without ranks, measured for real on loopback; sessions are STAND-INs: shells here."""

import shlex
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpubed.checks import tcp_links
from gpubed.checks.context import Context
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandFailed, CommandResult
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process


class Here:
    def __init__(self, node):
        self.node = node

    def put(self, local, remote):
        shutil.copy(local, remote)

    def run(self, command, *words, check=True, **_):
        quoted = tuple(shlex.quote(str(word)) for word in words)
        done = subprocess.run(
            ["sh", "-c", command % quoted], capture_output=True, text=True, check=False
        )
        result = CommandResult(done.stdout, done.stderr, done.returncode, 0.0)
        if check and done.returncode:
            raise CommandFailed(self.node, command, result)
        return result


@pytest.fixture
def context(tmp_path):
    """Three nodes on loopback, of which the first alone has ranks."""
    (tmp_path / "runs").mkdir()
    plan = sample_plan(storage={"shared": {"path": str(tmp_path)}})
    granted = sample_allocation(plan)
    nodes = tuple(
        node.model_copy(update={"experiment_address": f"127.0.0.{place + 2}", "slots": not place})
        for place, node in enumerate(granted.nodes)
    )
    granted = granted.model_copy(update={"nodes": nodes})
    sessions = {node.name: Here(node.name) for node in nodes}
    return Context(Cluster(SimpleNamespace(), plan, granted), sessions)


def test_each_direction_of_each_pair_is_measured(context, tmp_path):
    found = tcp_links.measured(context, 100e6)
    names = ["node-0", "node-1", "node-2"]
    assert {(row["src"], row["dst"]) for row in found} == {
        (src, dst) for src in names for dst in names if src != dst
    }
    assert all(row["measured_bps"] > 200e6 for row in found)
    assert list((tmp_path / "runs").iterdir()) == [], "nothing is left there"


def test_where_all_have_ranks_there_is_nothing_to_do(context):
    nodes = tuple(node.model_copy(update={"slots": 1}) for node in context.allocation.nodes)
    granted = context.allocation.model_copy(update={"nodes": nodes})
    alone = Context(replace(context.cluster, allocation=granted), {})
    assert tcp_links.measured(alone, 100e6) == []


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_in_pairs_each_node_is_measured_both_ways(context, tmp_path, count, one_host):
    granted = context.allocation.model_copy(update={"one_host": one_host})
    among = Context(replace(context.cluster, allocation=granted), context.sessions)
    found = tcp_links.in_pairs(among, granted.nodes[:count], 100e6)
    links = {(row["src"], row["dst"]) for row in found}
    pairs = [("node-0", "node-1"), ("node-0", "node-2")][: count - 1]
    assert links == {*pairs, *((dst, src) for src, dst in pairs)}
    assert len(found) == len(links)
    assert list((tmp_path / "runs").iterdir()) == [], "nothing is left there"
