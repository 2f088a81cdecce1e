"""State and testbed compared: what was lost, planted or half made is found and put right."""

import shutil
import subprocess

import pytest

from support.cluster import BIN, Cluster, labelled

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def names(things):
    return [thing["name"] for thing in things]


def plant(bare, kind, uuid, name):
    labels = [f"--label=gpubed.cluster={uuid}", f"--label=gpubed.name={bare.name}"]
    subprocess.run(["docker", kind, "create", *labels, name], check=True, capture_output=True)


def test_an_untouched_cluster_agrees_with_its_state(bare):
    """Whatever lies in the project's folder: the engine took a file for a module of its own."""
    (bare.root / "tty.py").write_text("raise ImportError('shadow')\n")
    bare.call("up")
    found = bare.json("audit")
    assert {"node-0", "node-1", "control", "experiment"} <= set(names(found["recorded"]))
    assert not found["missing"] + found["unrecorded"] + found["others"] + found["interrupted"]


def test_what_is_missing_is_named_and_made_again(bare):
    bare.call("up")
    ids = {node["name"]: node["id"] for node in bare.json("status")["nodes"]}
    subprocess.run(["docker", "rm", "-f", ids["node-1"]], check=True, capture_output=True)
    assert names(bare.json("audit", rc=1)["missing"]) == ["node-1"]
    found = bare.json("audit", "--adopt")
    assert found["missing"] == []
    assert "node-1" in names(found["recorded"])


def test_only_what_is_not_in_the_state_is_removed(bare):
    bare.call("up")
    before = labelled(bare.name)
    plant(bare, "network", bare.json("audit")["uuid"], f"{bare.name}-planted")
    assert names(bare.json("audit", rc=1)["unrecorded"]) == [f"{bare.name}-planted"]
    assert "not confirmed" in bare.call("audit", "--remove", rc=2).stderr
    found = bare.json("audit", "--remove", "-y")
    assert found["removed"] == [f"network {bare.name}-planted"]
    assert labelled(bare.name) == before


def test_data_that_is_not_in_the_state_is_named_and_only_down_removes_it(bare):
    bare.call("up")
    planted = f"{bare.name}-planted"
    plant(bare, "volume", bare.json("audit")["uuid"], planted)
    assert "stays until `gpubed down`" in bare.call("audit").stdout
    assert bare.json("audit", "--remove", "-y")["removed"] == []
    assert any(planted in thing for thing in labelled(bare.name))
    assert f"volume {planted}" in bare.json("down", "-y")["removed"]


def test_a_lost_state_leaves_what_can_still_be_named_and_removed(bare):
    bare.call("up")
    uuid = bare.json("audit")["uuid"]
    shutil.rmtree(bare.root / ".gpubed")
    found = bare.json("audit")
    assert found["uuid"] is None
    assert {thing["uuid"] for thing in found["others"]} == {uuid}
    removal = ("audit", "--remove", "--uuid", uuid, "-y")
    assert len(bare.json(*removal)["removed"]) == 4, "two nodes, two networks"
    [volume] = bare.json("audit")["others"]
    assert volume["kind"] == "volume", "data stays unless that is asked for"
    assert f"--remove --uuid {uuid} --data" in bare.call("audit").stdout
    another = ("audit", "--remove", "--uuid", "6f0c0000-0000-4000-8000-000000000000", "-y")
    assert "no resource has the uuid" in bare.call(*another, rc=2).stderr
    assert bare.json(*removal, "--data")["removed"] == [f"volume {volume['name']}"]
    assert labelled(bare.name) == []


def test_what_was_not_taken_over_stays_the_others(bare, tmp_path):
    """A refused `--adopt` had taken the uuid, and the next `down` the other project's cluster."""
    bare.call("up")
    uuid, before = bare.json("audit")["uuid"], labelled(bare.name)
    one = [{**bare.spec["nodes"][0], "count": 1}]
    moved = {"control": {"subnet": "10.98.0.0/24"}}
    for number, changes in enumerate(({"nodes": one}, {"networks": moved})):
        other = Cluster(tmp_path / f"other-{number}", bare.name, **{**bare.spec, **changes})
        refused = other.call("audit", "--adopt", "--uuid", uuid, rc=2).stderr
        assert "own disk" in refused
        assert "was left alone" in other.call("down", "-y", rc=1).stderr
        assert labelled(bare.name) == before


@pytest.mark.faults
def test_a_moved_project_goes_on(bare):
    bare.call("up")
    there = bare.root.with_name("moved")
    bare.root.rename(there)
    try:
        moved = {**bare.environment, "GPUBED_ROOT": str(there)}
        command = [str(BIN / "gpubed"), "ssh", bare.name, "--", "hostname"]
        done = subprocess.run(command, env=moved, capture_output=True, text=True, check=False)
        assert done.stdout == "node-0\n", done.stderr
    finally:
        there.rename(bare.root)


@pytest.mark.faults
def test_kept_data_of_ones_own_is_not_half_made(bare):
    bare.call("up")
    bare.call("down", "--keep-data", "-y")
    found = bare.call("audit").stdout
    assert "half made" not in found
    bare.call("up")
    assert bare.json("audit")["unrecorded"] == []


def test_what_is_kept_beside_the_state_may_be_lost(bare):
    """`plan` took the cluster's own networks for another's."""
    bare.call("up")
    shutil.rmtree(bare.root / ".gpubed" / bare.name)
    assert bare.json("plan")["obstacles"] == []


@pytest.mark.faults
def test_data_that_is_gone_is_not_said_to_be_on_the_nodes_disks(bare):
    bare.call("up")
    for kind in ("container", "volume"):
        rows = [row.split() for row in labelled(bare.name) if row.startswith(kind)]
        remove = ["docker", kind, "rm", "-f", *(row[1] for row in rows)]
        subprocess.run(remove, check=True, capture_output=True)
    refused = bare.call("down", "--keep-data", rc=2).stderr
    assert "no volume to keep any more: volume" in refused
    assert "disks" not in refused


@pytest.mark.faults
def test_nodes_that_were_not_configured_are_offered_what_they_can_do(bare):
    said = bare.call("up").stdout
    assert f"next: gpubed ssh {bare.name} head" in said
    refused = bare.call("run", "digits", rc=2).stderr
    assert "configure: false" in refused


@pytest.mark.faults
def test_a_renamed_folder_is_another_cluster_and_says_so(bare):
    bare.call("up")
    spec = bare.root / "inventories" / bare.name
    spec.rename(spec.with_name("renamed"))
    try:
        _, said = bare.start("plan", "renamed", stderr=subprocess.PIPE).communicate()
        assert f"{bare.name}: made here, and without a specification now" in said
    finally:
        spec.with_name("renamed").rename(spec)


def test_down_removes_what_is_not_in_the_state_and_in_the_way(bare):
    bare.call("up")
    found = bare.json("audit")
    [volume] = [thing["id"] for thing in found["recorded"] if thing["kind"] == "volume"]
    image = bare.json("status")["nodes"][0]["id"]
    shown = subprocess.run(
        ["docker", "inspect", "-f", "{{.Image}}", image], capture_output=True, text=True, check=True
    )
    labels = [f"--label=gpubed.cluster={found['uuid']}", f"--label=gpubed.name={bare.name}"]
    create = ["docker", "create", *labels, "-v", f"{volume}:/shared", shown.stdout.strip()]
    subprocess.run(create, check=True, capture_output=True)
    assert bare.json("down", "-y")["survivors"] == []
    assert labelled(bare.name) == []
