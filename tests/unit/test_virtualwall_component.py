"""The virtualwall backend's resources, with Pulumi's own mocks in place of an engine."""

from __future__ import annotations

import pulumi
import pytest

from gpubed.backends.virtualwall.component import Cluster
from gpubed.backends.virtualwall.node import NodeDriver, NodeInputs
from gpubed.backends.virtualwall.slice import SliceDriver
from gpubed.backends.virtualwall.slice_inputs import SliceInputs
from support.declared import UUID, declare, mocked
from unit.test_virtualwall_documents import BACKEND

DATA = {
    "version": 1,
    "name": "vw",
    "backend": BACKEND | {"shared_folder": "/proj/p", "hardware": {"node": {"type": "pcgen05"}}},
    "nodes": [{"count": 3, "min": 2}],
    "networks": {"experiment": {"rate": "200 Mbit/s", "mtu": 9000}},
    "storage": {"shared": {"provider": "volume"}},
}


class Mocks(pulumi.runtime.Mocks):
    """Answers as the drivers would; node-2 has failed."""

    def __init__(self):
        self.made = {}

    def new_resource(self, args):
        inputs = {k: v for k, v in args.inputs.items() if k != "__provider"}
        self.made[args.name] = inputs
        if inputs.get("kind") == "slice":
            result = {"nodes": {f"node-{i}": {"sliver": f"s{i}"} for i in range(3)}}
        elif args.name == "node-2":
            result = {"failed": "no boot loader"}
        else:
            result = {
                "id": f"s-{args.name}",
                "control_address": "10.0.0.1",
                "host_keys": ["ssh-ed25519 A"],
                "user": "alice",
                "port": 22,
                "via": [],
            }
        return f"{args.name}-id", {**inputs, "result": result}

    def call(self, args):
        return {}, None


@pytest.fixture
def mocks():
    with mocked(Mocks()) as mocks:
        yield mocks


@pytest.fixture
def allocation(mocks):
    allocation, _ = declare(Cluster, DATA)
    return allocation


def test_one_slice_holds_all_nodes(mocks, allocation):
    inputs = SliceInputs.model_validate(mocks.made["slice"])
    assert inputs.nodes == ("node-0", "node-1", "node-2")
    assert (inputs.groups["node"].min, inputs.groups["node"].type) == (2, "pcgen05")
    assert inputs.name.endswith(UUID[:8])


def test_a_node_is_made_from_its_part_of_the_slice(mocks, allocation):
    node = NodeInputs.model_validate(mocks.made["node-1"])
    assert node.granted.sliver == "s1"
    assert node.mtu == 9000
    assert node.shared
    assert node.shared.folder == f"/proj/p/gpubed-{UUID}"


def test_a_spare_node_that_failed_is_left_out_of_the_allocation(allocation):
    assert [node.name for node in allocation.nodes] == ["node-0", "node-1"]
    assert [f.reason for f in allocation.failed] == ["no boot loader"]
    assert allocation.head.user == "alice"


def test_nothing_that_is_kept_in_the_state_is_secret(mocks, allocation):
    text = str(mocks.made)
    assert "PRIVATE KEY" not in text
    assert "openssl" not in text
    assert "-hmac" not in text


@pytest.mark.parametrize(
    ("change", "replace", "update"),
    [
        ({"request": "other"}, ["request"], []),
        ({"duration": 1.0}, [], []),
        ({"groups": {}}, [], ["groups"]),
        ({"public_key": "other"}, ["public_key"], []),
        # What a preview shows where the cluster's identity or key is replaced by force.
        ({"uuid": pulumi.output.UNKNOWN}, ["uuid"], []),
        ({"public_key": pulumi.output.UNKNOWN}, ["public_key"], []),
    ],
)
def test_what_a_changed_slice_means(mocks, allocation, change, replace, update):
    olds = mocks.made["slice"]
    found = SliceDriver(None).diff({}, olds, {**olds, **change})
    assert (list(found.replace), list(found.update)) == (replace, update)


def test_another_way_to_the_same_testbed_keeps_the_nodes(mocks, allocation):
    olds = mocks.made["slice"]
    login = {**olds, "testbed": {**olds["testbed"], "login": "/new/login.pem"}}
    assert list(SliceDriver(None).diff({}, olds, login).update) == ["testbed"]
    project = {**olds, "testbed": {**olds["testbed"], "project": "other"}}
    assert list(SliceDriver(None).diff({}, olds, project).replace) == ["testbed"]


def test_a_node_is_replaced_with_its_sliver_only(mocks, allocation):
    olds = mocks.made["node-1"]
    assert not list(NodeDriver(None).diff({}, olds, olds).update)
    assert list(NodeDriver(None).diff({}, olds, {**olds, "mtu": 1500}).update) == ["mtu"]
    other = {**olds, "granted": {"sliver": "s9"}}
    assert list(NodeDriver(None).diff({}, olds, other).replace) == ["granted"]


def test_a_preview_of_a_slice_that_is_only_changed_keeps_its_nodes(mocks, allocation):
    """What it answers is not known then, but its name is; of one that is replaced, neither."""
    olds = mocks.made["node-1"]
    changed = {**olds, "granted": pulumi.output.UNKNOWN}
    assert not [*NodeDriver(None).diff({}, olds, changed).replace]
    assert list(NodeDriver(None).diff({}, olds, {**changed, "mtu": 1500}).update) == ["mtu"]
    replaced = {**changed, "slice": pulumi.output.UNKNOWN}
    assert list(NodeDriver(None).diff({}, olds, replaced).replace) == ["granted"]
    former = {key: value for key, value in changed.items() if key != "slice"}
    assert list(NodeDriver(None).diff({}, former, former).replace) == ["granted"]
