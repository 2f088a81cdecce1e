"""Images are handed out where Docker is, and for its user."""

from pathlib import Path

import pytest

from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.jobs import images
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterPaths:
    """The paths of a cluster that is not there."""
    return Project(tmp_path).cluster("lab")


@pytest.mark.parametrize(
    ("docker", "hint"),
    [(None, "services.docker"), ({"user_access": False}, "services.docker.user_access")],
)
def test_without_docker_for_the_user_it_says_what_to_set(cluster, docker, hint):
    plan = sample_plan(services={"docker": docker})
    with pytest.raises(UsageError) as error:
        images.require(Cluster(cluster, plan, sample_allocation(plan)), "box:1")
    assert error.value.hint == f"set {hint} in cluster.yml, then: gpubed up lab"
