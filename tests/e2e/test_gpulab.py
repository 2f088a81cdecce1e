"""GPULab, with the real job: digits trains with Horovod in containers that the server starts.

The image of those containers is a node of a local cluster, as it is after `up`: it has
python3, horovodrun and torch on PATH, as an image for GPULab has. There are no GPUs here,
so the image says that torch computes on the CPU; how many GPUs a worker has is what the
server says.
"""

import json
import subprocess
import time

import pytest

from support.cluster import Cluster, labelled, unique
from support.gpulab.runners import ContainerRunner
from support.gpulab.site import IMAGE, Site

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

ENVIRONMENT = "/shared/env/current/bin"


def docker_call(*words, check=True):
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(docker, tmp_path_factory):
    """An image with the Horovod environment, and the volume that it needs mounted."""
    made = Cluster(
        tmp_path_factory.mktemp("environment"),
        unique("image"),
        nodes=[{"name": "node", "count": 1, "machine": {"cpus": 2, "memory": "6 GiB"}}],
        networks={},
        services={"jupyterlab": None},
    )
    tag = f"gpulab-{made.name}:1"
    try:
        made.call("up")
        [node] = json.loads((made.state / "allocation.json").read_text())["nodes"]
        made.node("node-0", f"test -x {ENVIRONMENT}/horovodrun")
        settings = f"ENV PATH={ENVIRONMENT}:/usr/bin:/bin GPUBED_DEVICE=cpu"
        docker_call("commit", "--change", settings, node["id"], tag)
        mounts = json.loads(docker_call("inspect", node["id"]))[0]["Mounts"]
        volume = next(m["Name"] for m in mounts if m["Destination"] == "/shared")
        yield tag, volume
    finally:
        docker_call("rmi", tag, check=False)
        made.call("down", "-y")
        assert labelled(made.name) == []


@pytest.fixture(scope="module")
def site(image, tmp_path_factory):
    """A GPULab whose jobs are containers, with project storage."""
    tag, environment = image
    project = unique("gpulab-project")
    docker_call("volume", "create", project)
    runner = ContainerRunner(
        {IMAGE: tag},
        {"/project_ghent": project},
        always=("--entrypoint", "", "-v", f"{environment}:/shared:ro"),
    )
    try:
        with Site(tmp_path_factory.mktemp("gpulab"), runner) as made:
            made.path = "/project"
            yield made
    finally:
        docker_call("volume", "rm", "-f", project)


def write(site, **changes):
    spec = site.spec(**changes)
    spec["storage"] = {"shared": {"path": "/project"}}
    site.write("gl", spec)


def test_one_job_with_ten_gpus_is_one_horovod_world_of_ten_ranks(site):
    write(site, count=1, gpus=10)
    site.call("up", "gl")
    result = site.json("run", "gl", "digits")
    assert (result["status"], result["world_size"]) == ("ok", 10)
    assert result["test_accuracy"] >= 0.97
    assert result["backend"]["controller"] == "gloo"
    [job] = site.service.jobs.values()
    assert (job.status, len(job.gpu_ids)) == ("FINISHED", 10)


def test_ten_jobs_with_one_gpu_each_are_ten_trials(site):
    write(site, count=10, gpus=1, parallel=2)
    result = site.json("run", "gl", "digits")
    assert (result["status"], result["world_size"], len(result["trials"])) == ("ok", 1, 10)
    accuracy = result["statistics"]["test_accuracy"]
    assert accuracy["n"] == 10
    assert accuracy["min"] <= accuracy["mean"] <= accuracy["max"]
    assert accuracy["sd"] > 0, "each trial has a seed of its own"
    assert sum(job.status == "FINISHED" for job in site.service.jobs.values()) == 11


def test_cancelled_training_stops_in_its_container(site):
    write(site, count=1, gpus=2)
    process = site.start("run", "gl", "digits", "--set", "epochs=100000")
    while len(site.service.jobs) < 12:
        time.sleep(0.1)
        assert process.poll() is None
    *_, job = site.service.jobs.values()
    while job.status != "RUNNING":
        time.sleep(0.1)
        assert process.poll() is None
    assert site.json("down", "gl", "-y")["survivors"] == []
    assert process.wait(120) == 1
    assert job.status == "CANCELLED"
    assert docker_call("ps", "-q", "--filter", f"name=gpulab-{job.uuid}") == ""
