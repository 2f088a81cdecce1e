"""The plan: a pure function; growing a group moves nothing else."""

from ipaddress import IPv4Network

import pytest

from gpubed.core.errors import UsageError
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan
from support.specs import BACKENDS, sample


def spec(**changes):
    base = {
        "version": 1,
        "name": "lab",
        "backend": {"type": "local"},
        "nodes": [{"name": "node", "count": 3}],
        "networks": {"experiment": {"rate": "1 Gbit/s"}},
    }
    return model().model_validate({**base, **changes})


def addresses(cluster):
    return {n.name: (n.control_address, n.experiment_address) for n in cluster.nodes}


def test_the_first_node_is_the_head_and_the_only_one():
    roles = [node.role for node in plan(spec()).nodes]
    assert roles == ["head", "worker", "worker"]


def test_growing_a_group_moves_no_other_node():
    groups = [{"name": "a", "count": 2}, {"name": "b", "count": 2}]
    grown = [{"name": "a", "count": 5}, {"name": "b", "count": 2}]
    before, after = addresses(plan(spec(nodes=groups))), addresses(plan(spec(nodes=grown)))
    assert before.items() <= after.items()


def test_addresses_are_unique_and_in_their_subnet():
    groups = [{"name": name, "count": 40} for name in "abcdefghij"]
    cluster = plan(spec(nodes=groups))
    control = [node.control_address for node in cluster.nodes]
    assert len(set(control)) == 400
    assert all(address in cluster.control.subnet for address in control)
    assert cluster.control.subnet.network_address + 1 not in control, "the gateway's address"


def test_a_subnet_that_is_named_is_avoided():
    usual = plan(spec()).control.subnet
    named = {"experiment": {"rate": "1 Gbit/s", "subnet": next(usual.subnets(new_prefix=24))}}
    found = plan(spec(networks=named))
    assert found.experiment.subnet == named["experiment"]["subnet"]
    assert not found.control.subnet.overlaps(found.experiment.subnet)


def test_a_subnet_that_is_too_small_is_refused_with_a_size_that_fits():
    tight = {"experiment": {"rate": "1 Gbit/s", "subnet": "10.1.1.0/28"}}
    with pytest.raises(UsageError) as caught:
        plan(spec(networks=tight))
    size = caught.value.hint.split("/")[1].split()[0]
    roomy = {"experiment": {"rate": "1 Gbit/s", "subnet": IPv4Network(f"10.1.0.0/{size}")}}
    plan(spec(networks=roomy))


@pytest.mark.parametrize(
    ("backend", "gpus", "slots"),
    [
        ("local", [4, 2], [4, 2]),
        ("local", [0, 0], [1, 1]),
        ("local", [0, 4], [0, 4]),  # Horovod cannot sum on a CPU and on GPUs at once
        ("gpulab", [0, 4], [1, 4]),  # each node is a world of its own
    ],
)
def test_ranks_follow_the_gpus(backend, gpus, slots):
    groups = [{"name": f"g{n}", "count": 1, "gpus": count} for n, count in enumerate(gpus)]
    made = plan(spec(backend=BACKENDS[backend], nodes=groups))
    assert [node.slots for node in made.nodes] == slots


def test_nodes_beyond_min_may_fail_but_the_head_may_not():
    made = plan(
        spec(nodes=[{"count": 3, "min": 1, "on_failure": "leave_out"}, {"name": "w", "count": 2}])
    )
    assert [node.on_failure for node in made.nodes] == [None, "leave_out", "leave_out", None, None]


def test_auto_storage_is_what_the_testbed_has():
    assert plan(spec()).spec.storage.shared.provider == "volume"


def test_only_what_is_lent_for_a_time_costs_node_hours():
    hours = {name: sample(name, "cpu", "none", 0).node_hours for name in BACKENDS}
    assert hours.pop("virtualwall") == hours.pop("slices") == 2 * 24
    assert set(hours.values()) == {None}
