"""The local backend, with the specification that the other testbeds' tests have too."""

import pytest

from support.cluster import Cluster, unique
from support.everywhere import EVERYWHERE, becomes_a_cluster_that_trains

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]


@pytest.fixture
def cluster(docker, tmp_path):
    made = Cluster(tmp_path, unique("here"), backend={"type": "local"}, **EVERYWHERE)
    yield made
    made.call("down", "-y")


def test_containers_of_this_machine_become_a_cluster_that_trains(cluster):
    becomes_a_cluster_that_trains(cluster, cluster.json("up"))
