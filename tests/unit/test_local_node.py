"""A node's inputs: what is hashed, what is written, what changes in place."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from gpubed.backends.local import runtime
from gpubed.backends.local.node import NodeDriver
from gpubed.backends.local.runtime import NodeInputs
from gpubed.engines.embedded.values import UNKNOWN_TEXT

INPUTS: dict[str, Any] = {
    "backend": "local",
    "kind": "node",
    "cluster": "lab",
    "uuid": "6f0c0000-0000-4000-8000-000000000000",
    "name": "node-0",
    "image": "gpubed-node:debian-12-abc",
    "public_key": "ssh-ed25519 AAAA",
    "control": {"network": "c", "address": "10.0.0.10"},
    "experiment": {"network": "e", "address": "10.1.0.10"},
    "link": {"subnet": "10.1.0.0/24", "rate_bps": 200_000_000, "mtu": 1500},
    "shared": {"volume": "v", "path": "/shared"},
    "cpus": 2.0,
    "memory": 2**30,
    "gpus": [],
}


def test_link_file_has_whole_numbers_though_pulumi_sends_floats() -> None:
    link = {"subnet": "10.1.0.0/24", "rate_bps": 2e8, "mtu": 1500.0}
    node = NodeInputs.model_validate({**INPUTS, "link": link, "memory": float(2**33)})
    assert node.link is not None
    wanted = "SUBNET=10.1.0.0/24\nRATE_BPS=200000000\nMTU=1500\nDELAY_US=0\nLOSS_PERCENT=0.0000\n"
    assert node.link.text == wanted
    assert node.memory == 2**33


def test_limits_and_link_update_the_rest_replaces() -> None:
    news = {**INPUTS, "cpus": 1.0, "link": {**INPUTS["link"], "mtu": 9000}}
    change = NodeDriver().diff({"faults": []}, INPUTS, news)
    assert (list(change.replace), list(change.update)) == ([], ["cpus", "link"])
    change = NodeDriver().diff({"faults": []}, INPUTS, {**INPUTS, "image": "other"})
    assert (list(change.replace), list(change.update)) == (["image"], [])
    change = NodeDriver().diff({"faults": []}, INPUTS, {**INPUTS, "public_key": "other"})
    assert (list(change.replace), list(change.update)) == ([], ["public_key"])


def test_nodes_write_where_the_controller_makes_nothing(monkeypatch, tmp_path) -> None:
    """Else a node could alter an image in the making, or plant a link where a lock goes."""
    monkeypatch.setenv("GPUBED_CACHE", str(tmp_path))
    places = runtime.mounts(NodeInputs.model_validate(INPUTS))
    writable = {source for source, there in places.items() if there["mode"] == "rw"}
    assert writable == {str(tmp_path / "nodes"), "v"}


@pytest.mark.parametrize("name", [pulumi.output.UNKNOWN, UNKNOWN_TEXT])
def test_a_network_that_is_made_anew_replaces_no_node(name: Any) -> None:
    """Its name is not known in a plan, which said that all nodes go with what is on their disks."""
    news = {**INPUTS, "experiment": {"network": name, "address": "10.1.0.10"}}
    change = NodeDriver().diff({"faults": ["not on e"]}, INPUTS, news)
    assert (change.replace, change.update) == ([], ["not on e"])
    moved = {**INPUTS, "experiment": {"network": name, "address": "10.2.0.10"}}
    assert NodeDriver().diff({}, INPUTS, moved).replace == ["experiment"]
    assert NodeDriver().diff({}, INPUTS, {**INPUTS, "experiment": name}).replace == ["experiment"]


def test_a_node_of_an_earlier_version_is_not_replaced_to_be_confined() -> None:
    confined = {**INPUTS, "confined": True}
    change = NodeDriver().diff({"faults": []}, INPUTS, confined)
    assert (list(change.replace), list(change.update)) == ([], [])
    digests = {NodeInputs.model_validate(inputs).digest for inputs in (INPUTS, confined)}
    assert len(digests) == 1, "it is adopted as it is"
