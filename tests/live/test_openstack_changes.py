"""Changes of a running cluster on a real OpenStack: planned first, then done.

The tests use one cluster, in this order.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from live.conftest import NEEDED, Live
from support import changes, hypervisor
from support.taint import taint

pytestmark = NEEDED

MEANS = changes.of("openstack")
DONE, REFUSED = changes.done("openstack")
Spec = dict[str, Any]


@pytest.fixture(scope="module")
def running(live: Live) -> Live:
    """Two nodes; what is planned or done is so with the CLI."""
    live.cluster.engine = ("--engine", "cli")
    live.scale(2)
    live.cluster.edit(lambda spec: spec.update(networks={"experiment": {"rate": "200 Mbit/s"}}))
    live.up()
    return live


@pytest.fixture(scope="module")
def other_image(owner: Any, live: Live) -> Iterator[str]:
    """Another image; where nothing boots from one, any will do."""
    if name := os.environ.get("GPUBED_LIVE_OTHER_IMAGE"):
        yield name
        return
    if not hypervisor.is_needed(owner):
        pytest.skip("GPUBED_LIVE_OTHER_IMAGE names no second image")
    made = live.connection.image.create_image(
        name=f"gpubed-live-{uuid.uuid4().hex[:6]}",
        data=bytes(1 << 20),
        disk_format="raw",
        container_format="bare",
    )
    yield made.name
    live.connection.image.delete_image(made)


@pytest.fixture(scope="module")
def other_flavor(live: Live) -> str:
    names = [flavor.name for flavor in live.connection.compute.flavors()]
    others = [name for name in names if name != live.flavor]
    return others[0] if others else pytest.skip("this cloud has one flavor")


def servers(live: Live) -> dict[str, tuple[str, str]]:
    """Return what Nova says of each node: id, and start and flavor in one."""
    found = {}
    for server in live.connection.compute.servers(details=True):
        if server.metadata.get("gpubed.name") == live.cluster.name:
            name = re.search(r"node-\d+$", server.name)[0]  # type: ignore[index]
            found[name] = (server.id, f"{server.launched_at} {server.flavor.original_name}")
    return found


def options(**changed: Any) -> Callable[[Spec], None]:
    return lambda spec: spec["backend"].update(changed)


def keys(**changed: Any) -> Callable[[Spec], None]:
    return lambda spec: spec.update(changed)


def group(**changed: Any) -> Callable[[Spec], None]:
    return lambda spec: spec["nodes"][0].update(changed)


def let_in(spec: Spec) -> None:
    spec["backend"]["access_from"].append("198.18.0.0/15")
    spec["firewall"] = {"open": [{"port": 8080, "source": "192.0.2.0/24"}]}


CHANGES: dict[str, Callable[[Spec], None]] = {
    "more nodes": group(count=3),
    "login": lambda spec: None,
    "access_from, firewall": let_in,
    "rate": lambda spec: spec["networks"]["experiment"].update(rate="100 Mbit/s"),
    "shaping, dns": options(shaping="none", dns=["192.0.2.53"]),
    "data_volumes": options(data_volumes=["1 GiB"]),
    "services, recipe, lease": keys(
        services={"monitoring": {}}, recipe="cuda13", lease={"duration": "5h"}
    ),
    "min, on_failure": group(min=1, on_failure="leave_out"),
    "flavor": options(),
    "fewer nodes": group(count=2),
    "image": options(),
    "anti_affinity": options(anti_affinity="none"),
    "no experiment network": keys(networks={}),
    "a flavor that the cloud does not have": options(flavor="no-such-flavor"),
    "more than the quota": group(count=400),
    "name of a group": group(name="other"),
}


def test_every_change_of_the_matrix_is_made() -> None:
    assert [*CHANGES] == [*MEANS]


@pytest.mark.parametrize("change", DONE)
def test_a_change_is_planned_and_done_as_planned(
    running: Live, request: pytest.FixtureRequest, change: str
) -> None:
    edit = CHANGES[change]
    if change == "login":
        running.login.use(1)
    if change == "data_volumes" and not running.connection.has_service("block-storage"):
        pytest.skip("this cloud has no volumes")
    if change == "image":
        edit = options(images={"debian-12": request.getfixturevalue("other_image")})
    if change == "flavor":
        _resize(running, request.getfixturevalue("other_flavor"))
        return
    _make(running, edit, MEANS[change])


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_cannot_be_is_refused_before_anything_goes(
    running: Live, change: str
) -> None:
    changes.refuse(running.cluster, lambda: servers(running), CHANGES[change])


# One of each kind of resource that a cluster on OpenStack is made of.
FORCED = [
    *("HostKey::node-1", "Instance::node-1", "Port::node-1-control", "Port::node-1-experiment"),
    *("Network::experiment", "Subnet::experiment", "Network::control", "Subnet::control"),
    *("Router::router", "RouterInterface::router", "FloatingIp::door", "Keypair::keypair"),
    *("SecGroup::nodes", "SecGroupRule::nodes-within", "ServerGroup::nodes"),
    *("QosPolicy::experiment", "QosBandwidthLimitRule::experiment-egress"),
    *("Volume::node-1-data-0", "VolumeAttach::node-1-data-0", "Network::external"),
    *("Capacity::capacity", "Identity::identity", "Key::key", "Configuration::configuration"),
]


@pytest.fixture(scope="module")
def whole(running: Live) -> Live:
    """A cluster that has all of them, as far as the cloud does."""
    wanted: dict[str, Any] = {"anti_affinity": "soft"}
    if running.connection.network.find_extension("qos"):
        wanted["shaping"] = "qos"
    if running.connection.has_service("block-storage"):
        wanted["data_volumes"] = ["1 GiB"]
    running.cluster.edit(options(**wanted))
    running.cluster.edit(lambda spec: spec.update(networks={"experiment": {"rate": "200 Mbit/s"}}))
    running.scale(2)
    running.up("-y")
    return running


@pytest.mark.parametrize("resource", FORCED)
def test_a_forced_replacement_leaves_a_whole_cluster(whole: Live, resource: str) -> None:
    """`pulumi up --replace` and `pulumi state taint`: nobody asks the plugin."""
    kind, backend = resource.split("::")[0], whole.cluster.spec["backend"]
    if kind.startswith("Qos") and backend["shaping"] != "qos":
        pytest.skip("this cloud shapes no ports")
    if kind.startswith("Volume") and "data_volumes" not in backend:
        pytest.skip("this cloud has no volumes")
    taint(whole.cluster, resource)
    whole.up("-y")
    assert set(servers(whole)) == {"node-0", "node-1"}
    assert whole.plan() == set()
    found = whole.cluster.json("audit", "--engine", "cli")
    assert found["missing"] == []
    # A volume that was replaced keeps what is on it: `gpubed down` removes it.
    assert {thing["kind"] for thing in found["unrecorded"]} <= {"volume"}


@pytest.mark.parametrize("gone", [".gpubed/pulumi", ".gpubed"])
def test_a_lost_state_is_taken_over_with_new_servers(whole: Live, gone: str) -> None:
    """No plugin takes what exists into a new state; data volumes are left alone."""
    cluster, before = whole.cluster, servers(whole)
    uuid_ = cluster.json("audit", "--engine", "cli")["uuid"]
    shutil.rmtree(cluster.root / gone)
    adopt = ("audit", "--adopt", "--uuid", uuid_, "--engine", "cli")
    if gone == ".gpubed":
        assert "cannot be adopted into a new state" in cluster.call(*adopt, rc=2).stderr
        cluster.call(*adopt, "-y")
    else:
        cluster.call("audit", "--remove", "-y", "--engine", "cli")
        whole.up("-y")
    now = servers(whole)
    assert set(now) == set(before)
    assert {id_ for id_, _ in now.values()}.isdisjoint(id_ for id_, _ in before.values())
    found = cluster.json("audit", "--engine", "cli")
    assert (found["uuid"], found["missing"], found["others"]) == (uuid_, [], [])
    assert {thing["kind"] for thing in found["unrecorded"]} <= {"volume"}


def _make(running: Live, edit: Callable[[Spec], None], becomes: str) -> None:
    loses = "what is on its own disks is lost"
    changes.make(running.cluster, lambda: servers(running), edit, becomes, loses)


def _resize(running: Live, flavor: str) -> None:
    """Nova moves a server for that: some clouds have no other host."""
    right = running.cluster.spec
    try:
        _make(running, options(flavor=flavor), MEANS["flavor"])
    except AssertionError as error:
        # Nova says so at once, or takes the order and goes back to what it was.
        if not re.search("No valid host|unexpected state 'ACTIVE'", str(error)):
            raise
        running.cluster.write(right)
        running.up()
        pytest.skip("this cloud has no other host that a server could be resized on")
