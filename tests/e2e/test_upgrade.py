"""A cluster that a former version made: what this version promises holds for it, too."""

import io
import subprocess
import tarfile

import pytest

from support.cluster import BIN, ROOT
from support.taint import taint

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.docker]

# The last one whose volumes went with a lost key.
FORMER = "9e90f16"
FILE = "/shared/results.txt"


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    """The former version's sources."""
    asked = ["git", "-C", str(ROOT), "archive", FORMER]
    archive = subprocess.run(asked, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this checkout has no {FORMER}: {archive.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture
def inherited(bare, former):
    """Two nodes that the former version made, with a result on their shared storage; the UUID."""
    made = subprocess.run(
        [str(BIN / "gpubed"), "up", bare.name, "--engine", "embedded"],
        env={**bare.environment, "PYTHONPATH": str(former / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    bare.node("node-0", f"sudo tee {FILE}", "42")
    return bare, bare.json("audit")["uuid"]


def nothing(cluster):
    """What was there before is enough."""


def lose_the_key(cluster):
    (cluster.state / "secrets" / "id_ed25519").unlink()


def replace_the_volume(cluster):
    taint(cluster, "shared")


def replace_the_identity(cluster):
    taint(cluster, "identity")


def want_one_network(cluster):
    cluster.edit(lambda spec: spec.update(networks={"control": {}}))


@pytest.mark.parametrize(
    "damage",
    [nothing, lose_the_key, replace_the_volume, replace_the_identity, want_one_network],
    ids=lambda damage: damage.__name__,
)
def test_the_next_up_loses_nothing(inherited, damage):
    cluster, uuid = inherited
    damage(cluster)
    cluster.call("up", "-y", "--engine", "embedded")
    assert cluster.node("node-1", f"cat {FILE}") == "42"
    assert cluster.json("plan")["changes"] == []
    found = cluster.json("audit")
    assert (found["uuid"], found["missing"], found["unrecorded"]) == (uuid, [], [])


def test_down_asks_about_its_data_and_keeps_it(inherited):
    cluster, uuid = inherited
    assert "--keep-data" in cluster.call("down", rc=2).stderr
    assert len(cluster.json("down", "--keep-data", "-y")["kept"]) == 1
    cluster.call("up")
    assert cluster.json("audit")["uuid"] == uuid
    assert cluster.node("node-1", f"cat {FILE}") == "42"
