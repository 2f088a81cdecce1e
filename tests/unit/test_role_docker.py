"""What gpubed-container asks of Docker, run for real; Docker is a STAND-IN that says its words."""

import os
import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines

TEMPLATE = machines.ROOT / "roles/docker/templates/gpubed-container.j2"


@pytest.fixture
def words(tmp_path):
    """A function that starts a rank in a container and returns what Docker was asked."""
    program, docker = tmp_path / "gpubed-container", tmp_path / "docker"
    template = Environment(undefined=StrictUndefined).from_string(TEMPLATE.read_text())
    program.write_text(
        template.render(
            ansible_managed="managed", docker_folders=[], docker_shared="/shared", __docker_gpus=2
        )
    )
    docker.write_text("#!/bin/sh\n# STAND-IN\n[ $1 = rm ] || printf '%s\\n' \"$@\"\n")
    docker.chmod(0o755)

    def run(**environment):
        return subprocess.run(
            ["sh", program, "image:1", "true"],
            env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()

    return run


def test_a_choice_of_gpus_counts_in_a_container_too(words):
    assert "CUDA_VISIBLE_DEVICES" in words(CUDA_VISIBLE_DEVICES="1")


def test_numbers_of_a_scheduler_are_not_those_in_a_container(words):
    said = words(CUDA_VISIBLE_DEVICES="1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="1")
    assert "CUDA_VISIBLE_DEVICES" not in said
    assert "SLURM_JOB_ID" in said
