"""What `plan` and `up` say of a step that deletes or replaces something."""

import pytest

from gpubed.cluster import removals
from gpubed.engines.embedded import ResourceEvent, Result

NODE = "pulumi-python:dynamic/gpubed:Node"


def step(backend, type_=NODE, op="replace", why=("image",)):
    urn = f"urn:pulumi:lab::gpubed::gpubed:{backend}:Cluster${type_}::node-0"
    return ResourceEvent(op, "planned", urn, type_, "node-0", why=why)


@pytest.mark.parametrize(
    ("backend", "type_"),
    [("local", NODE), ("virtualwall", NODE), ("openstack", "openstack:compute/instance:Instance")],
)
def test_a_lent_nodes_disk_goes_with_it(backend, type_):
    said = removals.cost(step(backend, type_))
    assert said.startswith("replace ")
    assert said.endswith("node-0 (image): what is on its own disks is lost")


def test_an_own_host_leaves_the_cluster_with_all_that_is_on_it():
    """Whatever backend the specification names by now."""
    said = removals.cost(step("static", op="delete", why=()))
    assert said == (
        "delete Node node-0: its host leaves the cluster, and what is on its disks stays"
    )


def test_the_clouds_words_for_a_rate_are_nobodys_loss():
    """`shaping: none` takes them away, and nothing of a node with them."""
    kinds = ("qosPolicy:QosPolicy", "qosBandwidthLimitRule:QosBandwidthLimitRule")
    steps = tuple(step("openstack", f"openstack:networking/{kind}", "delete") for kind in kinds)
    assert removals.destructive_steps(Result({"delete": 2}, steps, {}, 0.0)) == []


@pytest.mark.parametrize(
    ("op", "then"),
    [
        ("replace", "a new one takes its place, the old one stays on the testbed"),
        ("delete", "the old one stays on the testbed, unused, until `gpubed down` removes it"),
    ],
)
def test_a_new_volume_is_promised_only_where_one_is_made(op, then):
    """A folder that a node serves takes the place of one that is deleted."""
    volume = step("local", NODE.replace("Node", "Volume"), op, ())
    [said] = removals.lost(Result({op: 1}, (volume,), {}, 0.0), [])
    assert said.endswith(then)
