"""Rehearsals on a real cluster, as docs/how-to/rehearse.md walks them: real ranks, real links."""

import json

import pytest

from support.cluster import Cluster, unique
from support.howto import follow

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(3600)]
NODE = {"name": "node", "count": 3, "machine": {"memory": "2 GiB"}}
ONE = ("--model", "resnet18", "--batch", "32", "--nodes", "3")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """A cluster of three nodes without JupyterLab, and what the page's commands said there."""
    found = Cluster(
        tmp_path_factory.mktemp("rehearsed"),
        unique("rehearse"),
        nodes=[NODE],
        services={"jupyterlab": None},
    )
    found.call("up")
    yield found
    found.call("down", "-y")


@pytest.fixture(scope="module")
def said(rehearsed, tmp_path_factory):
    return follow(rehearsed, "rehearse.md", "lab", tmp_path_factory.mktemp("page"), skip="ten")


def test_the_pages_commands_probe_rehearse_and_name_the_slow_node(rehearsed, said):
    assert "of the declared rate" in said
    assert "Compute is emulated" in said
    assert "A slow node at 1 of 1 points on several nodes: rank 2 on node-2 computes 1.5" in said
    probe = json.loads((rehearsed.state / "calibration.json").read_text())
    assert 0.7 < probe["ways"]["tcp"]["bus_bps"] / probe["link_bps"] < 1


def test_points_lie_near_what_was_predicted_before(rehearsed, said):
    folder = next(
        path.parent
        for path in (rehearsed.state / "campaigns").glob("rehearsal-*/campaign.json")
        if json.loads(path.read_text())["factors"]["batch_size"] == [32, 64]
    )
    told = json.loads((folder / "report" / "report.json").read_text())["predictions"]
    assert len(told) == 6
    differences = sorted(abs(one["difference"]) for one in told)
    assert differences[len(told) // 2] <= 0.08, differences
    assert sum(one["inside"] for one in told) >= 5


def test_fusion_that_is_off_is_named(rehearsed, said):
    told = rehearsed.json("rehearse", *ONE, "--set", "fusion_mb=0")
    assert any("Fusion is off at 1 of 1 points" in line for line in told["findings"])


def test_gradients_on_the_control_network_are_named(rehearsed, said):
    """As where a node's settings name the wrong interface, and no firewall is in the way."""
    nodes = json.loads((rehearsed.state / "allocation.json").read_text())["nodes"]
    for node in nodes:
        address = node["control_address"]
        rehearsed.node(
            node["name"],
            f"i=$(ip -o -4 address show to {address} | awk '{{print $2}}'); sudo sed -i -E "
            '-e "s/^(HOROVOD_GLOO_IFACE|GPUBED_INTERFACE)=.*/\\1=$i/" '
            f'-e "s/^GPUBED_ADDRESS=.*/GPUBED_ADDRESS={address}/" /etc/gpubed/horovod.env; '
            "sudo nft flush ruleset",
        )
    told = rehearsed.json("rehearse", *ONE, "--new")
    assert any("Wrong network at 1 of 1 points" in line for line in told["findings"])
