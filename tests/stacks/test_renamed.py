"""A resource that was renamed in the state: the new name adopts the thing, and it stays.

Real Docker networks, with either engine; a real node in tests/e2e/test_forced_replacement.py.
"""

import json
import os
import shutil
import subprocess
import uuid

import docker
import pytest

from gpubed.core.paths import Project
from gpubed.engines.embedded import Engine
from gpubed.engines.stack import environment, passphrase_file
from support.cluster import BIN, unique

pytestmark = pytest.mark.docker
NODE = "version: 1\nbackend: {type: local}\nnodes: [{name: node, count: 1}]\n"
PROGRAM = """
import json
import os
from gpubed.testbeds.resources import Network
for name, given in json.loads(os.environ["GPUBED_WANTED"]).items():
    Network(name, "local", given)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The paths of a cluster whose program declares its control network, and nothing else."""
    (tmp_path / "Pulumi.yaml").write_text("name: gpubed\nruntime: python\n")
    (tmp_path / "__main__.py").write_text(PROGRAM)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = Project(tmp_path).cluster(unique("renamed"))
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text(NODE)
    paths.project.pulumi.mkdir(parents=True)
    owner = {"cluster": paths.name, "uuid": str(uuid.uuid4()), "purpose": "control"}
    monkeypatch.setenv("GPUBED_WANTED", json.dumps({"control": {**owner, "subnet": subnet()}}))
    yield paths
    for network in networks(paths):
        network.remove()


def subnet():
    """Return a subnet that no test in another process draws."""
    drawn = uuid.uuid4().int
    return f"10.{240 + drawn % 8}.{drawn // 8 % 256}.0/28"


def networks(paths):
    return docker.from_env().networks.list(filters={"label": f"gpubed.name={paths.name}"})


def by_cli(paths, *words):
    done = subprocess.run(
        ["pulumi", *words, "-s", paths.name, "--yes", "--non-interactive"],
        cwd=paths.project.root,
        env={**os.environ, **environment(paths), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def by_engine(paths, verb):
    engine = Engine(
        paths.project.root,
        paths.name,
        backend_dir=paths.project.pulumi,
        passphrase_file=passphrase_file(paths.project),
    )
    getattr(engine, verb)()


def state_file(paths):
    return next(paths.project.pulumi.glob(f".pulumi/stacks/*/{paths.name}.json"))


def rename(paths):
    """Rename the network in the state, as `pulumi state rename` does."""
    file = state_file(paths)
    file.write_text(file.read_text().replace("::control", "::former"))


def recorded(paths):
    latest = json.loads(state_file(paths).read_text())["checkpoint"]["latest"]
    return [r["urn"].rpartition("::")[2] for r in latest.get("resources") or () if r.get("id")]


def test_what_a_new_name_adopted_stays(cluster):
    by_engine(cluster, "up")
    (made,) = networks(cluster)
    rename(cluster)
    by_engine(cluster, "up")
    assert [network.id for network in networks(cluster)] == [made.id]
    assert "former" not in recorded(cluster)
    by_engine(cluster, "destroy")
    assert networks(cluster) == []


def test_what_a_run_that_was_killed_left_twice_in_the_state_goes_with_the_last(cluster):
    by_engine(cluster, "up")
    document = json.loads(state_file(cluster).read_text())
    resources = document["checkpoint"]["latest"]["resources"]
    twice = {**resources[-1], "urn": resources[-1]["urn"].replace("::control", "::former")}
    resources.append(twice)
    state_file(cluster).write_text(json.dumps(document))
    (made,) = networks(cluster)
    by_engine(cluster, "up")
    assert [network.id for network in networks(cluster)] == [made.id]
    resources.append({**resources.pop(), "delete": True, "urn": resources[-1]["urn"]})
    state_file(cluster).write_text(json.dumps(document))
    by_engine(cluster, "destroy")
    assert networks(cluster) == []


@pytest.mark.live
@pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH")
def test_what_a_new_name_adopted_stays_with_the_cli(cluster):
    by_cli(cluster, "stack", "init")
    by_cli(cluster, "up", "--skip-preview")
    (made,) = networks(cluster)
    urn = next(
        r["urn"]
        for r in json.loads(state_file(cluster).read_text())["checkpoint"]["latest"]["resources"]
        if r["urn"].endswith("::control")
    )
    by_cli(cluster, "state", "rename", urn, "former")
    by_cli(cluster, "up", "--skip-preview")
    assert [network.id for network in networks(cluster)] == [made.id]
    assert "former" not in recorded(cluster)
    by_cli(cluster, "destroy", "--skip-preview")
    assert networks(cluster) == []
