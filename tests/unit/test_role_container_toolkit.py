"""Whose container toolkit it is, and which GPUs it hands out; NVIDIA's program is a STAND-IN."""

import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines
from support.role_tasks import play

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("runtimes", "mode", "said"),
    [
        ('{"nvidia": {}, "runc": {}}', "", ""),
        ('{"runc": {}}', "", "does not read DOCKER_OPTS from its unit"),
        ('{"nvidia": {}, "runc": {}}', "legacy", "knows no GPU by name"),
    ],
)
def test_an_old_docker_that_would_give_a_job_no_gpu_is_noticed(tmp_path, runtimes, mode, said):
    """An owner's settings count more than the role's, and are his."""
    done = play(
        tmp_path,
        "nvidia_container_toolkit",
        "check_runtime",
        programs={"docker": f"echo '{runtimes}'", "grep": f"echo '{mode}'"},
        __nvidia_container_toolkit_docker={"stdout": "20.10.24"},
    )
    assert (done.code == 0) == (said == "")
    assert said in " ".join(done.said.split())


@pytest.mark.parametrize(
    ("by_name", "options"),
    [
        (True, "--device nvidia.com/gpu=1 --device nvidia.com/gpu=3"),
        (False, "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1,nvidia.com/gpu=3"),
    ],
)
def test_docker_is_asked_for_these_gpus_and_no_others(by_name, options):
    path = machines.ROOT / "roles/nvidia_container_toolkit/templates/nvidia.j2"
    program = Environment(undefined=StrictUndefined, trim_blocks=True).from_string(path.read_text())
    text = program.render(ansible_managed="managed", __nvidia_container_toolkit_cdi=by_name)

    def said(*gpus):
        words = ["sh", "-c", text, "nvidia", *gpus]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert said("1", "3") == options
    assert said() == ""


# As NVIDIA's packages have it: in 1.18.0 no module of Debian's is found, in later ones none
# but nvidia-current; /dev/nvidia-uvm is listed if it is there.
