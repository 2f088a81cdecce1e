"""Clusters for the tests: one whole, some bare."""

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpubed.backends.local import apt_sources
from support.cluster import BIN, Cluster, unique

HERE = Path(__file__).parent
# Tests that share the session's cluster, in the order in which one leaves it as the next expects
# it: from a new cluster to one that is taken down. Files that are not here come after.
ORDER = (
    "test_ready",
    "test_own_work",
    "test_bench",
    "test_runs",
    "test_secrets",
    "test_firewall",
    "test_browser",
    "test_slurm",
    "test_containers",
    "test_datasets",
    "test_health",
    "test_monitoring",
    "test_scale",
    "test_audit",
    "test_data",
    "test_faults",
    "test_forced_replacement",
    "test_impostor",
    "test_interrupt",
    "test_kill",
    "test_watch",
    "test_owner",
    "test_units",
    "test_refusals",
    "test_down",
    "test_pulumi_cli",
    "test_vms",
)


def pytest_collection_modifyitems(items):
    """Put the tests of this folder in order, before others: beside each other, they end last."""
    others = [item for item in items if item.path.parent != HERE]
    mine = [item for item in items if item.path.parent == HERE]
    items[:] = sorted(mine, key=lambda item: _turn(item.path.stem)) + others


def _turn(name):
    return ORDER.index(name) if name in ORDER else len(ORDER)


@pytest.fixture(scope="session")
def docker():
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker daemon answers")


@pytest.fixture(scope="session")
def cluster(docker, tmp_path_factory):
    """Three verified nodes; taken down at the end whatever happened."""
    made = Cluster(tmp_path_factory.mktemp("project"), unique("e2e"))
    try:
        made.first_up = made.json("up")
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


@pytest.fixture(scope="session")
def rank_image(docker, tmp_path_factory):
    """Return a function from a Debian release to an image that ranks run in, and its archive.

    It has what the cluster's environment is built on; no registry is needed.
    """
    made = {}

    def build(suite):
        if suite not in made:
            made[suite] = _rank_image(suite, tmp_path_factory.mktemp("image"))
        return made[suite]

    yield build
    for name, _ in made.values():
        subprocess.run(["docker", "rmi", name], check=False, capture_output=True)


def _rank_image(suite, folder):
    sources = apt_sources.sources(suite)
    if shutil.which("mmdebstrap") is None or not sources:
        pytest.skip(f"mmdebstrap, or apt sources of {suite}, are missing on this machine")
    root, archive, name = folder / "root.tar", folder / "image.tar", f"gpubed-test-rank:{suite}"
    packages = f"--include=python3,{'libopenmpi3' if suite == 'bookworm' else 'libopenmpi40'}"
    build = ["mmdebstrap", "--variant=minbase", packages, suite, str(root)]
    subprocess.run([*build, *map(str, sources)], check=True, capture_output=True)
    subprocess.run(["docker", "import", str(root), name], check=True, capture_output=True)
    subprocess.run(["docker", "save", name, "--output", str(archive)], check=True)
    return name, archive


@contextmanager
def bare_cluster(root, memory="512 MiB"):
    """Give a project with two nodes that are not configured, not yet up; take it down."""
    nodes = [{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": memory}}]
    made = Cluster(root, unique("bare"), nodes=nodes, configure=False)
    try:
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


@pytest.fixture
def bare(docker, tmp_path):
    """A project with two nodes that are not configured, not yet up."""
    with bare_cluster(tmp_path) as made:
        yield made
