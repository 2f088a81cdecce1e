"""A cluster on CloudLab by its name, from `init` to `down`, as its how-to page says.

The site stands for CloudLab's in Utah, at the URLs that the preset has: its certificate carries
their host names, and it listens at their port. STAND-IN: the name service, which leads there.
Slivers are SSH servers of this process.
"""

from __future__ import annotations

import errno
import shutil
import subprocess

import pytest

from gpubed.backends.virtualwall.config import presets
from support.am import PROJECT, AmServer, Limits, Site, faults
from support.am.doors import Doors
from support.blocks import blocks
from support.cluster import Cluster

pytestmark = pytest.mark.testbeds

HOSTS = ("boss.utah.cloudlab.us", "www.emulab.net")
PORT = 12369
# Python reads it as it starts; URLs, ports and certificates stay what they are.
NAMES = f"""
import socket
genuine = socket.getaddrinfo
def getaddrinfo(host, *words, **options):
    return genuine("127.0.0.1" if host in {HOSTS} else host, *words, **options)
socket.getaddrinfo = getaddrinfo
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("am")
    options = {"nodes": Doors(), "site": Site.cloudlab(), "limits": Limits(delete=0.1)}
    try:
        made = AmServer(folder, hosts=HOSTS, port=PORT, **options)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        pytest.skip(f"port {PORT} of this machine is in use")
    for machine in made.inventory.machines:
        machine.type = {"pcgen05": "xl170"}.get(machine.type, machine.type)
    with made:
        yield made


@pytest.fixture(scope="module")
def cluster(site, tmp_path_factory):
    """A cluster on the way of the page: the file of `init`, with project and CA filled in."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "sitecustomize.py").write_text(NAMES)
    made = Cluster(tmp_path_factory.mktemp("project"), "cl")
    made.spec_path.unlink()
    home = tmp_path_factory.mktemp("home")
    user = site.user("alice", passphrase="open sesame")
    for name in ("Downloads", ".ssh"):
        (home / name).mkdir()
    shutil.copy(user.pem, home / "Downloads" / "cloudlab.pem")
    shutil.copy(site.bundle, home / "Downloads" / "genica.bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("HOME", str(home))
        first = blocks("docs/how-to/geni.md")[0]
        subprocess.run(
            ["bash", "-euc", "\n".join(command.text for command in first.commands)],
            input=f"{user.passphrase}\n",
            env=made.environment,
            text=True,
            check=True,
        )
        changes = {"project": PROJECT, "ca": "~/.ssh/genica.bundle", "poll": 0.05}
        made.edit(lambda spec: spec["backend"].update(changes))
        made.edit(lambda spec: spec["nodes"][0].update(count=2))
        made.edit(lambda spec: spec.update(configure=False))
        yield made
        made.call("down", "-y", rc=None)


def test_the_preset_is_all_that_the_file_tells_of_the_testbed(cluster):
    written = cluster.spec["backend"]
    assert (written["type"], written["testbed"]) == ("geni", "cloudlab-utah")
    assert not written.keys() & presets()["cloudlab-utah"].keys()
    assert cluster.json("check")["errors"] == []


def test_doctor_reaches_all_servers_of_the_preset_and_asks_for_no_bastion(cluster):
    said = cluster.call("doctor", rc=None).stdout
    assert {"name": "xl170", "total": 8}.items() <= cluster.json("resources")["offers"][-1].items()
    for check in ("aggregate", "members", "project", "images"):
        [line] = [line for line in said.splitlines() if f"virtualwall.{check}" in line]
        assert "ok" in line.split()[:2], line
    assert "nodes are reached at their public addresses" in said
    assert f"https://127.0.0.1:{PORT}" in said or f"https://{HOSTS[0]}:{PORT}" in said


def test_a_node_is_added_and_the_others_stay(site, cluster):
    assert {change["op"] for change in cluster.json("plan")["changes"]} == {"create"}
    before = {row["name"]: row["id"] for row in cluster.json("up")["nodes"]}
    assert sorted(before) == ["node-0", "node-1"]
    images = {
        node.image for held in site.ledger.slices.values() for node in held.request.nodes.values()
    }
    assert images == {presets()["cloudlab-utah"]["images"]["ubuntu-22.04"]}
    prepared = {path: path.stat().st_mtime_ns for path in cluster.state.glob("nodes/*.json")}
    assert len(prepared) == 2
    cluster.edit(lambda spec: spec["nodes"][0].update(count=3))
    ops = {change["op"] for change in cluster.json("plan")["changes"]}
    assert not ops & {"delete", "replace"}
    # Without -y: nothing goes, so that nothing is asked.
    after = {row["name"]: row["id"] for row in cluster.json("up")["nodes"]}
    assert before.items() < after.items()
    assert sorted(after) == ["node-0", "node-1", "node-2"]
    assert {path: path.stat().st_mtime_ns for path in prepared} == prepared, "not prepared anew"
    assert cluster.json("plan")["changes"] == []
    assert cluster.node("node-2", "true") == ""


def test_a_refused_node_changes_nothing_and_the_next_up_gets_it(site, cluster):
    before = site.slivers()
    site.faults.on("Update", faults.refused("out of coffee", code=7), nth=1, times=1)
    cluster.edit(lambda spec: spec["nodes"][0].update(count=4))
    said = cluster.call("up", rc=4).stderr
    assert "node-3 cannot join a slice that runs" in said
    assert "out of coffee" in said
    assert site.slivers() == before
    assert len(cluster.json("up")["nodes"]) == 4
    assert set(before) < set(site.slivers())
    cluster.edit(lambda spec: spec["nodes"][0].update(count=99))
    assert "nothing was changed" in cluster.call("up", rc=4).stderr
    cluster.edit(lambda spec: spec["nodes"][0].update(count=4))


def test_a_lease_is_renewed(cluster):
    assert cluster.json("renew", "--for", "12h")["lease"]["remaining_s"] > 11 * 3600


def test_the_former_name_of_the_backend_means_the_same_cluster(cluster):
    cluster.edit(lambda spec: spec["backend"].update(type="virtualwall"))
    assert cluster.json("plan")["changes"] == []
    cluster.edit(lambda spec: spec["backend"].update(type="geni"))
    assert cluster.json("audit")["missing"] == []


def test_a_preset_that_is_not_there_names_the_nearest(cluster):
    spec = cluster.spec
    cluster.edit(lambda spec: spec["backend"].update(testbed="cloudlab-uta"))
    [error] = cluster.json("check", rc=2)["errors"]
    assert (error["path"], error["message"]) == (
        "backend.testbed",
        "there is no testbed 'cloudlab-uta'; did you mean 'cloudlab-utah'?",
    )
    cluster.edit(lambda spec: spec["backend"].pop("testbed"))
    missing = [error["path"] for error in cluster.json("check", rc=2)["errors"]]
    assert missing == ["backend.aggregate", "backend.authority"]
    cluster.write(spec)


def test_down_leaves_nothing(site, cluster):
    cluster.call("down", "-y")
    assert site.slivers() == []
