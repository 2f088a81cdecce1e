"""From specification to GPULab job: what is sent, and what is refused before."""

import json
import os
import subprocess

import pytest

from gpubed.backends.gpulab import request
from gpubed.core.errors import UsageError
from gpubed.spec import clusterspec
from gpubed.spec.plan import plan
from gpubed.testbeds import specification
from gpubed.testbeds.base import Task
from support.gpulab import schema

DOCUMENT = {
    "version": 1,
    "name": "gl",
    "backend": {
        "type": "gpulab",
        "certificate": "/login.pem",
        "project": "myproj",
        "image": "horovod/horovod:0.28.1",
        "cluster": 6,
        "gpu_model": ["V100"],
    },
    "nodes": [{"name": "job", "count": 1, "gpus": 10, "machine": {"cpus": 20, "memory": "64 GiB"}}],
    "recipe": "cuda12",
    "lease": {"duration": "90 min"},
}


def made(**changes):
    return plan(clusterspec.model().model_validate({**DOCUMENT, **changes}))


def rendered(cluster, folder, **changes):
    task = Task("main", folder, ["main.py"], "1", folder, (), frozenset(), {}, **changes)
    return request.render(
        cluster,
        cluster.nodes[0],
        name="gpubed-gl-1",
        labels=request.label("gl", "6f0c"),
        project_urn="urn:publicid:IDN+ilabt.imec.be+project+myproj",
        task=task,
        command=["python", "main.py", "--seed", "3"],
        environment={"GPUBED_RUN_DIR": "/shared/runs/1"},
        mark="gpubed-00",
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "main.py").write_text("print()")
    return tmp_path


@pytest.fixture
def document(folder):
    return json.loads(json.dumps(rendered(made(), folder)))


def test_a_job_says_all_that_gpulab_must_know(document):
    assert not schema.problems(document)
    docker = document["request"]["docker"]
    *_, settings, _bundle = docker.pop("command")
    assert document == {
        "name": "gpubed-gl-1",
        "description": "gpubed.cluster=6f0c gpubed.name=gl",
        "owner": {"projectUrn": "urn:publicid:IDN+ilabt.imec.be+project+myproj"},
        "deploymentEnvironment": "production",
        "request": {
            "resources": {
                "cpus": 20,
                "gpus": 10,
                "cpuMemoryGb": 69,
                "gpuModel": ["V100"],
                "minCudaVersion": 12,
                "clusterId": 6,
            },
            "docker": {
                "image": "horovod/horovod:0.28.1",
                "environment": {
                    "GPUBED_RUN_DIR": "/shared/runs/1",
                    "HOROVOD_GLOO_TIMEOUT_SECONDS": "180",
                    "GPUBED_NODE": "localhost",
                    "GPUBED_ADDRESS": "127.0.0.1",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                },
                "storage": [
                    {"hostPath": "/project_ghent", "containerPath": "/shared"},
                    {"hostPath": "tmpfs", "containerPath": "/dev/shm", "sizeGb": 3},
                ],
            },
            "scheduling": {
                "interactive": False,
                "restartable": False,
                "maxDuration": "90 minutes",
            },
        },
    }
    command = json.loads(settings)["command"]
    assert command[:2] == ["horovodrun", "--gloo"]
    assert command[4:8] == ["-np", "10", "-H", "localhost:10"]
    # Each rank takes its own GPU and nothing else.
    assert command[8:10] == ["sh", "-c"]
    assert "cuda:$HOROVOD_LOCAL_RANK" in command[10]
    # What the first of them starts with is kept.
    assert command[11:14] == ["-", "sh", "-c"]
    assert "rank-0.env" in command[14]
    assert command[15:] == ["gpubed-environment", "python", "main.py", "--seed", "3"]


def test_a_job_that_is_too_large_for_a_command_is_refused(folder):
    (folder / "main.py").write_bytes(os.urandom(200_000))
    with pytest.raises(UsageError, match="too large to travel") as caught:
        rendered(made(), folder)
    assert "project storage" in caught.value.hint


@pytest.fixture
def check(tmp_path):
    def check(text, **backend):
        path = tmp_path / "gl" / "cluster.yml"
        path.parent.mkdir(exist_ok=True)
        document = {**{k: v for k, v in DOCUMENT.items() if k != "name"}, **text}
        document["backend"] = {**DOCUMENT["backend"], **backend}
        path.write_text(json.dumps(document, indent=1))
        return [f"{e.path}: {e.message} ({e.allowed})" for e in specification.check(path)[1]]

    return check


def test_one_world_over_several_jobs_is_refused_with_the_reason_and_both_ways_out(check):
    [error] = check({"nodes": [{**DOCUMENT["nodes"][0], "count": 5, "gpus": 2}]})
    assert "no cluster of GPULab lets jobs reach each other" in error
    assert "one node with gpus: 10" in error
    assert "backend.jobs: trials for 5 worlds" in error
    assert check({"nodes": [{**DOCUMENT["nodes"][0], "count": 5, "gpus": 2}]}, jobs="trials") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"networks": {"experiment": {"rate": "1 Gbit/s"}}}, "gpulab has no network to declare"),
        ({"services": {"slurm": {}}}, "services.slurm: gpulab lends no nodes"),
        ({"services": {"docker": {}}}, "services.docker: gpulab lends no nodes"),
        ({"services": {"monitoring": {}}}, "services.monitoring: gpulab lends no nodes"),
        ({"lease": {"duration": "30 d"}}, "after two weeks"),
        ({"nodes": [{"count": 1}]}, "must be told cpus and memory"),
        (
            {"nodes": [{"name": "a", "count": 1}, {"name": "b", "count": 1, "gpus": 2}]},
            "trials of different sizes have no mean",
        ),
        (
            {"nodes": [{"count": 1, "machine": {"cpus": 1.5, "memory": "4 GB"}}]},
            "gives whole CPUs",
        ),
    ],
)
def test_what_jobs_in_containers_cannot_do_is_refused(check, text, says):
    assert any(says in error for error in check(text))


@pytest.mark.parametrize(
    ("backend", "path"),
    [
        ({"master": "http://gpulab.example.org/api/"}, "backend.master"),
        ({"master": "https://user:secret@gpulab.example.org/api/"}, "backend.master"),
        ({"image": "user:secret@registry/horovod"}, "backend.image"),
        ({"killIdle": True}, "backend.killIdle"),
        ({"parallel": 50}, "backend.parallel"),
    ],
)
def test_a_wrong_option_is_named(check, backend, path):
    assert [error for error in check({}, **backend) if error.startswith(path)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("environment", "device"),
    [
        ({"HOROVOD_LOCAL_RANK": "3"}, "cuda:3 is cuda:GPU 3"),
        ({"HOROVOD_LOCAL_RANK": "3", "GPUBED_DEVICE": "cpu"}, "cpu is "),
        ({"HOROVOD_LOCAL_RANK": "0", "GPUBED_DEVICE_NAME": "mine"}, "cuda:0 is mine"),
    ],
)
def test_each_rank_says_which_gpu_it_computes_on(tmp_path, environment, device):
    """Ten jobs may be on ten kinds of it. nvidia-smi is a STAND-IN."""
    told = tmp_path / "nvidia-smi"
    told.write_text('#!/bin/sh\necho "GPU ${3#--id=}"\n')
    told.chmod(0o755)
    words = [*request._ON_ITS_GPU, "sh", "-c", 'echo "$GPUBED_DEVICE is $GPUBED_DEVICE_NAME"']
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        words, env={**path, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip("\n") == device
    told.unlink()
    bare = subprocess.run(words, env={**path, **environment}, capture_output=True, text=True)
    assert bare.returncode == 0, "an image may have no nvidia-smi"
