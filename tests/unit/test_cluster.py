"""A cluster whose nodes are granted is one value: where it is, what was planned, what was given."""

import ast
from pathlib import Path

import pytest

from gpubed.cluster import drivers
from gpubed.core.errors import UsageError
from gpubed.nodes.allocation import NotUp
from gpubed.testbeds.specification import load_cluster
from support.samples import granted_cluster

SOURCE = Path(__file__).parents[2] / "src" / "gpubed"
TOGETHER = {"ClusterPaths", "ClusterPlan", "Allocation"}


def apart(path):
    """Yield the functions of a module that take the three as parameters of their own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.args, *node.args.kwonlyargs]
            if {ast.unparse(one.annotation) for one in given if one.annotation} >= TOGETHER:
                yield f"{path.relative_to(SOURCE)}: {node.name}"


def test_it_has_what_was_written(tmp_path):
    paths = granted_cluster(tmp_path)
    cluster = load_cluster(paths)
    assert (cluster.name, cluster.paths) == ("lab", paths)
    assert [node.name for node in cluster.plan.nodes] == ["node-0", "node-1", "node-2"]
    assert [node.id for node in cluster.allocation.nodes][1:] == ["id-node-1", "id-node-2"]


def test_without_nodes_there_is_none_whatever_is_planned(tmp_path):
    paths = granted_cluster(tmp_path)
    paths.spec.write_text("nodes: no list\n")
    with pytest.raises(UsageError):
        load_cluster(paths)
    paths.allocation.unlink()
    with pytest.raises(NotUp):
        load_cluster(paths)


def test_nothing_takes_the_three_apart():
    assert [found for path in sorted(SOURCE.rglob("*.py")) for found in apart(path)] == []


def test_outputs_of_a_stack_lead_to_the_cluster_and_have_no_token(tmp_path, monkeypatch):
    paths = granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    granted = load_cluster(paths)
    told = drivers.outputs(granted.plan, granted.allocation.model_dump(mode="json"))
    at = granted.allocation.head.control_address
    assert told == {
        "state": "ready",
        "head": "node-0",
        "ssh_command": f"ssh -F {paths.ssh_config} node-0",
        "jupyterlab_url": f"https://{at}:8888/lab",
    }
