"""A cluster whose nodes are granted is one value: where it is, what was planned, what was given."""

import pytest

from gpubed import resources
from gpubed.core.errors import UsageError
from gpubed.nodes.allocation import NotUp
from gpubed.testbeds.specification import load_cluster
from support.samples import granted_cluster


def test_without_nodes_there_is_none_whatever_is_planned(tmp_path):
    paths = granted_cluster(tmp_path)
    paths.spec.write_text("nodes: no list\n")
    with pytest.raises(UsageError):
        load_cluster(paths)
    paths.allocation.unlink()
    with pytest.raises(NotUp):
        load_cluster(paths)


def test_outputs_of_a_stack_lead_to_the_cluster_and_have_no_token(tmp_path, monkeypatch):
    paths = granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    granted = load_cluster(paths)
    told = resources.outputs(granted.plan, paths, granted.allocation.model_dump(mode="json"))
    at = granted.allocation.head.control_address
    assert told == {
        "state": "ready",
        "head": "node-0",
        "ssh_command": f"ssh -F {paths.ssh_config} node-0",
        "jupyterlab_url": f"https://{at}:8888/lab",
    }
