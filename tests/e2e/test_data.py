"""What researchers wrote outlives everything but a `down` that was told to remove it."""

import shutil

import pytest

from gpubed.core.paths import Project
from support.cluster import labelled
from support.known import mark

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

FILE = "/shared/results.txt"


@pytest.fixture
def written(bare):
    """A cluster with a result on its shared storage."""
    bare.call("up")
    bare.node("node-0", f"sudo tee {FILE}", "42")
    return bare


def read(cluster):
    return cluster.node("node-1", f"cat {FILE}")


def ids(cluster):
    return {node["name"]: node["id"] for node in cluster.json("status")["nodes"]}


def uuid(cluster):
    return cluster.json("audit")["uuid"]


def planned(cluster):
    return {(c["op"], c["urn"].split("::")[-1]) for c in cluster.json("plan")["changes"]}


def test_a_lost_key_is_exchanged_on_the_nodes_that_there_are(written):
    before = ids(written)
    (written.state / "secrets" / "id_ed25519").unlink()
    assert not {op for op, _ in planned(written)} & {"delete", "replace"}
    written.call("up")
    assert ids(written) == before
    assert read(written) == "42"
    keys = written.node("node-0", "cat ~/.ssh/authorized_keys")
    assert len(keys.splitlines()) == 1, "the lost key does not open anything any more"


def test_down_keeps_data_when_told_to_and_the_next_up_takes_it_over(written):
    before = uuid(written)
    refused = written.call("down", rc=2).stderr
    assert "--keep-data" in refused
    down = written.json("down", "--keep-data", "-y")
    assert len(down["kept"]) == 1
    assert down["survivors"] == []
    assert [thing.split()[0] for thing in labelled(written.name)] == ["volume"]
    written.call("up")
    assert uuid(written) == before
    assert read(written) == "42"
    assert any("volume" in thing for thing in written.json("down", "-y")["removed"])
    assert labelled(written.name) == []


def test_a_lost_state_is_named_and_taken_over(written):
    before, nodes = uuid(written), ids(written)
    shutil.rmtree(written.root / ".gpubed")
    assert "left alone" in written.call("down", "-y", rc=1).stderr
    refused = written.call("up", rc=2).stderr
    assert before in refused
    assert f"gpubed audit {written.name}" in refused
    said = written.call("audit").stdout
    assert f"gpubed audit {written.name} --adopt --uuid {before}" in said
    written.call("audit", "--adopt", "--uuid", before)
    assert (uuid(written), ids(written)) == (before, nodes)
    assert read(written) == "42"


def test_a_volume_that_nothing_wants_any_more_stays(written):
    """Not even what a killed run left is removed with what is on it."""
    mark(Project(written.root).cluster(written.name), killed=True)
    written.edit(lambda spec: spec.update(networks={"control": {}}))
    written.call("up", "-y")
    assert read(written) == "42"
