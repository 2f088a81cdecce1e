"""Whose container toolkit it is, and which GPUs it hands out; NVIDIA's program is a STAND-IN."""

import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines, role_variables
from support.role_tasks import play


@pytest.mark.parametrize(
    ("told", "ours", "kept"),
    [
        ("installed 1.21.0-1", False, True),
        ("installed 1.18.0-1", False, True),
        ("installed 1.17.8-1", False, False),
        ("config-files 1.21.0-1", False, False),
        ("", False, False),
        ("installed 1.20.0-1", True, False),
    ],
)
def test_an_owners_toolkit_stays_if_it_serves(told, ours, kept):
    found = role_variables.value(
        "nvidia_container_toolkit",
        "__nvidia_container_toolkit_kept",
        "debian-12",
        __nvidia_container_toolkit_dpkg={"stdout": told},
        __nvidia_container_toolkit_note={"stat": {"exists": ours}},
    )
    assert bool(found) is kept


@pytest.mark.parametrize(("listed", "right"), [(1, False), (4, True)])
def test_more_gpus_than_were_asked_for_are_well_and_fewer_are_not(tmp_path, listed, right):
    devices = "".join(f"echo nvidia.com/gpu={number}\n" for number in (*range(listed), "all"))
    done = play(
        tmp_path,
        "nvidia_container_toolkit",
        "check",
        programs={"nvidia-ctk": devices},
        nvidia_container_toolkit_gpus=2,
    )
    assert (done.code == 0) == right
    assert right or f"Containers on node-0 can have {listed} of 2 GPU(s)" in done.said


@pytest.mark.parametrize(
    ("by_name", "options"),
    [
        (True, "--device nvidia.com/gpu=1 --device nvidia.com/gpu=3"),
        (
            False,
            "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1,nvidia.com/gpu=3",
        ),
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
