"""What a change of a slice's or a node's inputs means, and what of them a state keeps."""

from __future__ import annotations

import pulumi
import pytest

from gpubed.backends.virtualwall import slice_inputs
from gpubed.backends.virtualwall.drivers import NodeDriver, SliceDriver
from unit.test_virtualwall_documents import planned

UNKNOWN = pulumi.output.UNKNOWN
SLICE = slice_inputs.planned(planned(3, group={"min": 2})) | {"uuid": "u", "public_key": "k"}
NODE = {"slice": "s", "granted": {"sliver": "s1"}, "testbed": {}, "mtu": 9000, "shared": None}


def test_nothing_that_is_kept_in_the_state_is_secret():
    for word in ("PRIVATE KEY", "openssl", "-hmac"):
        assert word not in str(SLICE)


@pytest.mark.parametrize(
    ("change", "replace", "update"),
    [
        ({"request": "other"}, ["request"], []),
        ({"duration": 1.0}, [], []),
        ({"groups": {}}, [], ["groups"]),
        ({"public_key": "other"}, ["public_key"], []),
        # What a preview shows where the cluster's identity or key is replaced by force.
        ({"uuid": UNKNOWN}, ["uuid"], []),
        ({"public_key": UNKNOWN}, ["public_key"], []),
        # Another way to the same testbed keeps the nodes.
        ({"testbed": SLICE["testbed"] | {"login": "/new/login.pem"}}, [], ["testbed"]),
        ({"testbed": SLICE["testbed"] | {"project": "other"}}, ["testbed"], []),
    ],
)
def test_what_a_changed_slice_means(change, replace, update):
    found = SliceDriver(None).diff({}, SLICE, SLICE | change)
    assert (list(found.replace), list(found.update)) == (replace, update)


@pytest.mark.parametrize(
    ("change", "replace", "update"),
    [
        ({}, [], []),
        ({"mtu": 1500}, [], ["mtu"]),
        ({"granted": {"sliver": "s9"}}, ["granted"], []),
        # A preview of a slice that changes in place knows its name, but not what it answers; of
        # one that is replaced, neither.
        ({"granted": UNKNOWN}, [], []),
        ({"granted": UNKNOWN, "mtu": 1500}, [], ["mtu"]),
        ({"granted": UNKNOWN, "slice": UNKNOWN}, ["granted"], []),
    ],
)
def test_a_node_is_replaced_with_its_sliver_only(change, replace, update):
    found = NodeDriver(None).diff({}, NODE, NODE | change)
    assert (list(found.replace), list(found.update)) == (replace, update)
