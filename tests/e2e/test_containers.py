"""A job's ranks in containers: handed out, run on all nodes, and refused where an image lacks."""

import re
import shlex

import pytest

from support.containers import load
from support.own_work import WAYS, Researcher

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]

IMAGE = "gpubed-test-rank:bookworm"


@pytest.fixture(scope="module")
def cluster_with_docker(cluster):
    before = cluster.spec
    services = before.get("services", {})
    cluster.write({**before, "services": {**services, "docker": {}}})
    cluster.call("up", "-y")  # on this machine by other nodes, which may do more
    yield cluster
    cluster.write(before)
    cluster.call("up")
    assert cluster.node("head", "command -v dockerd || echo none").strip() == "none"


@pytest.fixture(scope="module")
def handed_out(cluster_with_docker, rank_image):
    _, archive = rank_image("bookworm")
    load(cluster_with_docker, archive)
    return cluster_with_docker


def test_ranks_in_containers_train_as_bare_ones_do(handed_out):
    bare = handed_out.json("run", "digits", "--set", "epochs=12")
    contained = handed_out.json("run", "digits", "--set", "epochs=12", "--container", IMAGE)
    assert contained["status"] == "ok"
    assert contained["world_size"] == bare["world_size"]
    assert contained["backend"] == bare["backend"]
    assert contained["test_accuracy"] == pytest.approx(bare["test_accuracy"], abs=0.02)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_in_containers_that_fails_names_its_cause(handed_out, way, tmp_path):
    Researcher(handed_out, tmp_path / "mine").fails(way, "--container", IMAGE)


def test_a_container_is_within_the_memory_limit_of_its_node(handed_out):
    """Its memory is counted in a cgroup below the node's; PID 1 of the node is in init.scope."""
    look = "cat /proc/1/cgroup; echo; id=$(docker run --detach --rm {image} sleep 60); "
    look += "cat /proc/$(docker inspect --format '{{{{.State.Pid}}}}' $id)/cgroup; docker kill $id"
    said = handed_out.node("node-1", "sudo sh -c " + shlex.quote(look.format(image=IMAGE)))
    line = re.compile(r"^(?:\d+:memory|0:):(/.*)$", re.MULTILINE)
    node, container = (line.search(part)[1] for part in said.split("\n\n"))
    assert container.startswith(node.removesuffix("init.scope")), said


def test_no_container_is_left(handed_out):
    assert handed_out.node("head", "docker ps --all --quiet").strip() == ""


def test_a_node_without_the_image_gets_it(handed_out):
    handed_out.node("node-1", f"docker rmi {IMAGE}")
    assert handed_out.json("run", "digits", "--container", IMAGE)["status"] == "ok"


def test_a_daemon_that_is_broken_is_told_by_verify(handed_out):
    handed_out.node("node-1", "sudo systemctl stop docker.socket docker.service")
    found = handed_out.json("verify", rc=1)["verification"]["checks"]
    failed = [c for c in found if c["result"] == "fail"]
    handed_out.node("node-1", "sudo systemctl start docker.socket docker.service")
    assert [(c["id"], c["node"]) for c in failed] == [("docker.daemon", "node-1")]
    assert "journalctl -u docker on node-1" in failed[0]["reason"]
