"""A whole cluster on a GENI site whose slivers are real nodes: `make test-nightly PARTS=testbeds`.

The site verifies certificates and credentials; nodes are reached by real SSH as the
testbed's user, prove their host keys, and are prepared, configured and verified.
"""

from __future__ import annotations

import subprocess

import pytest
import yaml

from gpubed.backends.local import environment
from support import howto
from support.am import AmServer, Site, faults, machines
from support.am.machines import Machines
from support.cluster import BIN, Cluster, unique
from support.everywhere import EVERYWHERE, becomes_a_cluster_that_trains
from support.wall import backend

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

SHARE = "/proj/testproj"


@pytest.fixture(scope="module")
def site(docker, tmp_path_factory):
    site = Site()
    nodes = Machines(control="10.127.213.0/24", cpus=2.0, memory=6 << 30)
    with (
        pytest.MonkeyPatch.context() as patch,
        AmServer(tmp_path_factory.mktemp("am"), site=site, nodes=nodes) as server,
    ):
        # The machine's package cache, which its nodes share, belongs to the local backend's user.
        patch.setattr(machines, "_FIRST_UID", 1000)
        server.nodes = nodes
        yield server
        left = _labelled(nodes.uuid, "ps", "-a")
    assert not left, "the site's nodes outlive the cluster"


@pytest.fixture(scope="module")
def wall(site, tmp_path_factory):
    """Two verified nodes; what the first `up` said is in `first_up`."""
    block = backend(
        site,
        site.user("alice", passphrase="open sesame"),
        poll=1,
        patience=300,
        shared_folder=SHARE,
    )
    made = Cluster(tmp_path_factory.mktemp("project"), unique("vw"), backend=block, **EVERYWHERE)
    _let_nodes_reach_packages(made)
    try:
        made.first_up = made.json("up")
        yield made
    finally:
        command = [str(BIN / "gpubed"), "down", made.name, "-y"]
        subprocess.run(command, env=made.environment, check=False)


def _let_nodes_reach_packages(cluster):
    folder = cluster.spec_path.parent / "group_vars" / "all"
    folder.mkdir(parents=True)
    variables = {"gpubed_environment": environment.environment()}
    (folder / "site.yml").write_text(yaml.safe_dump(variables))


def _labelled(owner, *verb):
    command = ["docker", *verb, "-q", "--filter", f"label=gpubed.cluster={owner}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_up_ends_in_a_verified_cluster_on_granted_slivers(site, wall):
    document = wall.first_up
    becomes_a_cluster_that_trains(wall, document)
    assert {node["id"] for node in document["nodes"]} <= {str(s.urn) for s in site.slivers()}
    assert document["lease"]["remaining_s"] > 80000


def test_an_unchanged_up_changes_nothing(wall):
    changes = wall.json("plan")["changes"]
    assert changes == []
    wall.json("up")


def test_nodes_proved_their_host_keys(wall):
    """What SSH enforces is what the node wrote under the token, not what was seen first."""
    known = (wall.state / "known_hosts").read_text()
    for name in ("node-0", "node-1"):
        shown = wall.node(name, "cat /var/tmp/gpubed-host-keys")
        assert all(" ".join(line.split()[:2]) in known for line in shown.splitlines())
        assert wall.node(name, "cat /var/tmp/gpubed-host-keys.mac")


def test_resources_are_counted(wall):
    offers = {offer["name"]: offer for offer in wall.json("resources")["offers"]}
    assert (offers["pcgen05"]["free"], offers["pcgen05"]["total"]) == (6, 8)
    assert offers["pcgen07-gpu1080"]["gpus"] == 1


def test_a_renewal_is_told_as_it_was_granted(site, wall):
    before = wall.json("status")["lease"]["remaining_s"]
    assert wall.json("renew", "--for", "30h")["lease"]["remaining_s"] > before + 4 * 3600
    site.faults.on("Renew", faults.shortened(7200), nth=1, times=1)
    granted = wall.json("renew", "--for", "40h", rc=4)["lease"]
    assert granted["remaining_s"] < 38.1 * 3600
    assert granted["granted_until"] == wall.json("status")["lease"]["granted_until"]


def test_exports_stand_alone(wall, tmp_path):
    wall.call("export", "espec", "--out", str(tmp_path / "bundle"))
    document = yaml.safe_load((tmp_path / "bundle" / "experiment-specification.yml").read_text())
    assert (tmp_path / "bundle" / document["rspec"]).read_text().count("<node ") == 2
    config = tmp_path / "ssh_config"
    wall.call("export", "ssh-config", "--out", str(config))
    done = subprocess.run(
        ["ssh", "-F", str(config), "head", "hostname"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "node-0"
    assert 'type="request"' in wall.call("export", "rspec").stdout
    hosts = yaml.safe_load(wall.call("export", "inventory").stdout)["all"]["hosts"]
    assert sorted(hosts) == ["node-0", "node-1"]


def test_every_command_of_the_how_to_pages_does_what_it_says(wall, tmp_path):
    howto.follow(wall, "leases.md", "vw", tmp_path, {"--auto": "--once"})
    said = howto.follow(wall, "virtualwall.md", "vw", tmp_path)
    assert "digits: ok, world size 2" in said
    assert (tmp_path / "vw-experiment" / "experiment-specification.yml").exists()


def test_down_left_nothing(site, wall):
    """The page ends with it."""
    assert site.slivers() == []
    assert _labelled(site.nodes.uuid, "ps", "-a") == []
    assert not wall.state.exists() or [p.name for p in wall.state.iterdir()] == ["runs"]
