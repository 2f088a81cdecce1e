"""Clusters for the tests: one whole, some bare."""

import shutil
import subprocess
import uuid
from contextlib import contextmanager

import pytest

from support.cluster import BIN, Cluster


def unique(purpose):
    """Return a cluster name of its own, so that a run that was killed is in nobody's way."""
    return f"{purpose}-{uuid.uuid4().hex[:6]}"


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


@contextmanager
def bare_cluster(root):
    """Give a project with two nodes that are not configured, not yet up; take it down."""
    nodes = [{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": "512 MiB"}}]
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
