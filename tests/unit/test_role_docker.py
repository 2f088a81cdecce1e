"""What gpubed-container asks of Docker, run for real; Docker is a STAND-IN that says its words."""

import itertools
import os
import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines

pytestmark = pytest.mark.process

TEMPLATE = machines.ROOT / "roles/docker/templates/gpubed-container.j2"
FOLDERS = ["shared", "datasets", "scratch"]


@pytest.fixture
def container(tmp_path):
    """A function that starts a rank in a container; returns the words of `docker run`."""
    template = Environment(undefined=StrictUndefined, trim_blocks=True).from_string(
        TEMPLATE.read_text()
    )
    for name in (*FOLDERS, "bin", "gpubed/container.d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "scratch").rmdir()
    (tmp_path / "nccl.conf").write_text("NCCL_IB_DISABLE=1\n")
    programs = {
        "bin/docker": 'for word; do echo "$word"; done',
        "gpubed/container.d/nvidia": 'printf -- "--device nvidia.com/gpu=%s " "$@"',
    }
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
        (tmp_path / name).chmod(0o755)
    text = template.render(
        ansible_managed="managed",
        docker_folders=[str(tmp_path / name) for name in FOLDERS],
        docker_shared=str(tmp_path / "shared"),
        __docker_gpus=2,
    )
    text = text.replace("/etc/gpubed", str(tmp_path / "gpubed"))
    program = tmp_path / "gpubed-container"
    program.write_text(text.replace("/etc/nccl.conf", str(tmp_path / "nccl.conf")))

    def run(*before, **environment):
        done = subprocess.run(
            [*before, "sh", program, "box:1", "true"],
            env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return run


def after(words, option):
    return [value for word, value in itertools.pairwise(words) if word == option]


def test_it_has_nccls_settings_and_the_folders_that_the_node_has(container, tmp_path):
    places = [tmp_path / name for name in ("shared", "datasets", "nccl.conf")]
    assert after(container(), "--volume") == [f"{place}:{place}" for place in places]


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, ["0", "1"]),  # as many as were asked for, however many there are
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2"}, ["2"]),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_GPUS": "0",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_GPUS": "1,3",
            },
            ["1", "3"],
        ),
    ],
)
def test_it_has_the_gpus_of_its_job_only(container, variables, gpus):
    words = container(**variables)
    assert after(words, "--device") == [f"nvidia.com/gpu={gpu}" for gpu in gpus]


def test_it_has_the_cpus_that_its_rank_is_bound_to(container):
    cpu = str(max(os.sched_getaffinity(0)))
    assert after(container("taskset", "--cpu-list", cpu), "--cpuset-cpus") == [cpu]


def test_numbers_of_a_scheduler_are_not_those_in_a_container(container):
    said = container(CUDA_VISIBLE_DEVICES="1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="1")
    assert "CUDA_VISIBLE_DEVICES" not in said
    assert "SLURM_JOB_ID" in said
