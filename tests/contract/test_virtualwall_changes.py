"""Changes of a running cluster on a GENI site: planned first, then done, by every engine.

Slivers are SSH servers of this process, so everything is real but the machines. The tests
use one cluster per engine, in this order.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import changes
from support.am import AmServer, Limits, Site
from support.am.doors import Doors
from support.changes import put
from support.cluster import Cluster
from support.taint import taint
from support.wall import backend

pytestmark = pytest.mark.testbeds


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("am")
    with AmServer(folder, nodes=Doors(), site=Site(), limits=Limits(delete=0.1)) as made:
        yield made


@pytest.fixture(scope="module", params=changes.ENGINES)
def wall(request, server, tmp_path_factory):
    made = Cluster(
        tmp_path_factory.mktemp("project"),
        f"wall-{request.param[:3]}",
        backend=backend(server, server.user("alice", passphrase=None), shared_folder="/proj/p"),
        storage={"shared": {"provider": "volume"}},
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"rate": "1 Gbit/s"}},
        configure=False,
    )
    made.engine = ("--engine", request.param)
    made.json("up", *made.engine)
    server.nodes.commands.clear()
    yield made
    made.call("down", "-y", *made.engine)


def removals(server):
    return [command for command in server.nodes.commands if "rm -rf" in command]


def login(spec, folder):
    """The certificate was downloaded anew, to another place."""
    copy = folder / "renewed.pem"
    copy.write_bytes(Path(spec["backend"]["login"]).read_bytes())
    copy.chmod(0o600)
    spec["backend"]["login"] = str(copy)


LOST_KEY = "a lost key of the cluster"
FIREWALL = {"open": [{"port": 8080, "source": "192.0.2.0/24"}]}
IMAGE = "urn:publicid:IDN+wall2.ilabt.example+image+emulab-ops:UBUNTU20-64-STD"
LINK = "networks.experiment"
CHANGES = {
    "patience, poll, gpus": put(
        {"backend.patience": 50, "backend.poll": 0.06, "backend.gpus": {"pcgen05": 0}}
    ),
    "login": login,
    "lease": put({"lease": {"duration": "5h"}}),
    "services, firewall, recipe": put(
        {"services": {"monitoring": {}}, "firewall": FIREWALL, "recipe": "cuda13"}
    ),
    "mtu": put({f"{LINK}.mtu": 1400}),
    "more nodes": put({"nodes.0.count": 3}),
    "fewer nodes": put({"nodes.0.count": 2}),
    "fewer nodes, looked at first": put({"nodes.0.count": 1}),
    "rate": put({"nodes.0.count": 2, f"{LINK}.rate": "200 Mbit/s"}),
    "subnet of the experiment network": put({f"{LINK}.subnet": "10.99.0.0/24"}),
    "on_failure": put({"nodes.0.on_failure": "leave_out"}),
    "image": put({"backend.images": {"debian-12": IMAGE}}),
    "hardware": put({"backend.hardware.node.type": "pcgen07-1p"}),
    "no experiment network": put({"networks": {"experiment": None}}),
    "name of a group": put(
        {"nodes.0.name": "other", "backend.hardware": {"other": {"type": "pcgen05"}}}
    ),
    LOST_KEY: put({}),  # the test removes it
    "project": put({"backend.project": "other"}),
    "more machines than there are": put({"nodes.0.count": 99}),
    "a hardware type that the testbed does not have": lambda spec, _: spec["backend"].update(
        hardware={spec["nodes"][0]["name"]: {"type": "pcgen99"}}
    ),
}
MEANS = changes.of("virtualwall")
DONE, REFUSED = changes.done("virtualwall")
LEFT_OUT = "nodes that were left out can be had"


def test_every_change_of_the_matrix_is_made():
    assert [*CHANGES, LEFT_OUT] == [*MEANS]


@pytest.mark.parametrize("change", [c for c in DONE if c != LEFT_OUT])
def test_a_change_is_planned_and_done_as_planned(server, wall, tmp_path, change):
    nodes, options = MEANS[change], ["--refresh"] if "looked at first" in change else []
    before = {sliver.urn: sliver.client_id for sliver in server.slivers()}
    wall.edit(lambda spec: CHANGES[change](spec, tmp_path))
    if change == LOST_KEY:
        (wall.state / "secrets" / "id_ed25519").unlink()
    everything = {"slice", *before.values()}
    assert changes.doomed(wall) & everything == (everything if nodes == "anew" else set())
    document = wall.json("up", "-y", *options, *wall.engine)
    after = {sliver.urn: sliver.client_id for sliver in server.slivers()}
    assert {row["id"]: row["name"] for row in document["nodes"]} == after
    assert len(after) == wall.spec["nodes"][0]["count"]
    assert before.items() <= after.items() if nodes == "kept" else not after.keys() & before.keys()
    assert wall.json("plan", *wall.engine)["changes"] == []
    assert removals(server) == [], "what was written on the testbed's storage stays"


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_cannot_be_is_refused_before_anything_goes(server, wall, tmp_path, change):
    before, spec = server.slivers(), wall.spec
    wall.edit(lambda spec: CHANGES[change](spec, tmp_path))
    assert "nothing was changed" in wall.call("up", "-y", *wall.engine, rc=4).stderr
    assert server.slivers() == before
    wall.write(spec)


def test_a_node_that_was_left_out_joins_at_the_next_up_and_audit_does_not_miss_it(server, wall):
    """Nobody is asked: nothing goes with it."""
    taken = [m for m in server.inventory.machines if m.type == "pcgen07-gpu1080"][2:]
    for machine in taken:
        machine.broken = True

    def three_if_possible(spec):
        spec["nodes"] = [{"name": "node", "count": 3, "min": 2}]
        spec["backend"]["hardware"] = {"node": {"type": "pcgen07-gpu1080"}}

    wall.edit(three_if_possible)
    document = wall.json("up", "-y", *wall.engine)
    before = [row["id"] for row in document["nodes"]]
    assert [failure["node"] for failure in document["failed"]] == ["node-2"]
    assert wall.json("audit", *wall.engine)["missing"] == []
    again = wall.json("up", *wall.engine)
    assert [failure["node"] for failure in again["failed"]] == ["node-2"]
    for machine in taken:
        machine.broken = False
    document = wall.json("up", *wall.engine)
    assert document["failed"] == []
    assert [row["id"] for row in document["nodes"]][:2] == before
    assert MEANS[LEFT_OUT] == "kept"
    assert wall.json("plan", *wall.engine)["changes"] == []


@pytest.mark.parametrize(
    ("name", "anew"),
    [("node-1", set()), ("slice", {"node-0", "node-1"}), ("identity", set()), ("key", set())],
)
def test_a_forced_replacement_leaves_a_whole_cluster(server, wall, name, anew):
    """`pulumi up --replace` and `pulumi state taint`: nobody asks the driver."""
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 2}]))
    before = {row["name"]: row["id"] for row in wall.json("up", "-y", *wall.engine)["nodes"]}
    taint(wall, name)
    after = {row["name"]: row["id"] for row in wall.json("up", "-y", *wall.engine)["nodes"]}
    assert {node for node in before if before[node] != after[node]} == anew
    assert wall.json("plan", *wall.engine)["changes"] == []
    found = wall.json("audit", *wall.engine)
    assert (found["missing"], found["unrecorded"]) == ([], [])
    assert len(server.slivers()) == 2
    assert wall.node("node-1", "true") == ""


def test_a_lost_state_of_pulumi_is_taken_over(server, wall):
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 2}]))
    before = [row["id"] for row in wall.json("up", "-y", *wall.engine)["nodes"]]
    shutil.rmtree(wall.root / ".gpubed/pulumi")
    assert [row["id"] for row in wall.json("up", *wall.engine)["nodes"]] == before
    found = wall.json("audit", *wall.engine)
    assert (found["missing"], found["unrecorded"], found["others"]) == ([], [], [])


def test_nodes_that_let_in_a_lost_key_alone_are_asked_for_again(server, wall):
    """Everything is lost, and the shared folder stays the cluster's."""
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 2}]))
    before = {row["id"] for row in wall.json("up", "-y", *wall.engine)["nodes"]}
    uuid = wall.json("audit", *wall.engine)["uuid"]
    shutil.rmtree(wall.root / ".gpubed")
    assert uuid in wall.call("up", *wall.engine, rc=2).stderr
    said = wall.call("audit", *wall.engine).stdout
    assert f"gpubed audit {wall.name} --adopt --uuid {uuid}" in said
    adopt = ("audit", "--adopt", "--uuid", uuid)
    said = wall.call(*adopt, *wall.engine, rc=2).stderr
    assert "which is lost" in said
    assert f"gpubed audit {wall.name} --adopt --uuid {uuid} -y" in said
    wall.call(*adopt, "-y", *wall.engine)
    assert not before & {row["id"] for row in wall.json("status")["nodes"]}
    found = wall.json("audit", *wall.engine)
    assert (found["uuid"], found["missing"], found["unrecorded"]) == (uuid, [], [])
    assert found["others"] == []
    assert not [command for command in removals(server) if uuid in command]
    assert len(server.slivers()) == 2
    assert wall.node("node-1", "true") == ""


def test_down_takes_the_data_along(server, wall):
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 1}]))
    wall.json("up", "-y", *wall.engine)
    uuid = wall.json("audit", *wall.engine)["uuid"]
    wall.call("down", "-y", *wall.engine)
    assert [c for c in removals(server) if f" /proj/p/gpubed-{uuid}" in c]
    assert server.slivers() == []


def test_down_asks_for_the_data_and_may_keep_it(server, wall):
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 1}]))
    wall.json("up", "-y", *wall.engine)
    uuid = wall.json("audit", *wall.engine)["uuid"]
    # By now the specification says something else; what nodes got counts.
    wall.edit(lambda spec: spec["backend"].update(shared_folder="/proj/another"))
    kept = wall.json("down", "-y", "--keep-data", *wall.engine)["kept"]
    assert kept == [f"shared folder /proj/p/gpubed-{uuid}"]
    # Without a node nobody can remove it: that is no success, and it is not forgotten.
    again = wall.json("down", "-y", *wall.engine, rc=1)
    assert again["survivors"] == [f"shared folder /proj/p/gpubed-{uuid}"]
    assert not [command for command in removals(server) if uuid in command]
    wall.edit(lambda spec: spec["backend"].update(shared_folder="/proj/p"))
    wall.json("up", "-y", *wall.engine)
    assert wall.json("audit", *wall.engine)["uuid"] == uuid


def test_down_takes_the_data_of_a_former_version_along(server, wall):
    """It did not write down what nodes were given: the specification tells then."""
    wall.edit(lambda spec: spec.update(nodes=[{"name": "node", "count": 1}]))
    wall.json("up", "-y", *wall.engine)
    uuid = wall.json("audit", *wall.engine)["uuid"]
    (wall.state / "shared_folder.json").unlink()
    wall.call("down", "-y", *wall.engine)
    assert [c for c in removals(server) if f" /proj/p/gpubed-{uuid}" in c]
