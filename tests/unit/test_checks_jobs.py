"""Whether a job of Slurm and a container get their GPU: judged by what they say.

Sessions are stand-ins that answer what a test wants; no GPU, Slurm or Docker is here.
"""

import os
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.checks import docker, slurm
from gpubed.checks.context import Context
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support.samples import sample_allocation, sample_plan
from support.shell_host import ShellHost

NODES = (
    "node-0|idle|gpu:nvidia_a100-sxm4-80gb:2|none\nnode-1|{}|gpu:nvidia_a100-sxm4-80gb:{}(S:0)|none"
)
GPU = "cuda:NVIDIA A100-SXM4-80GB"


class Session:
    """Answers by the program that a command names."""

    def __init__(self, **answers):
        self.answers = answers

    def run(self, command, *_, **__):
        for word, answer in self.answers.items():
            if word in command:
                code, said = answer if isinstance(answer, tuple) else (0, answer)
                return CommandResult(said, said if code else "", code, 0.1)
        return CommandResult("", "", 0, 0.1)


def found(check, simulated=False, **answers):
    plan = sample_plan(nodes=[{"name": "node", "count": 2}], services={"slurm": {}, "docker": {}})
    allocation = sample_allocation(plan)
    nodes = tuple(node.model_copy(update={"gpus": 2}) for node in allocation.nodes)
    allocation = allocation.model_copy(update={"nodes": nodes})
    session = Session(**answers)
    context = Context(
        Cluster(SimpleNamespace(name="lab"), plan, allocation),
        dict.fromkeys(("node-0", "node-1"), session),
    )
    model = SimpleNamespace(simulated="A100-SXM4-80GB" if simulated else None)
    context.__dict__["facts"] = {"node-0": model, "node-1": model}
    ids = ("slurm.gpus", "docker.gpus")
    return {each.node: (each.result, each.reason) for each in check(context) if each.id in ids}


def of_slurm(job, state="idle", count=2, **options):
    options["gpubed-rank"] = job
    return found(slurm.slurm, sinfo=NODES.format(state, count), **options)


def test_a_job_that_asks_for_one_gpu_has_exactly_one():
    assert set(of_slurm(f"1|{GPU}").values()) == {("pass", "")}


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (f"0,1|{GPU}", "a job with one GPU sees 0,1"),
        (f"|{GPU}", "a job with one GPU sees none"),
        ("0|cpu", "a job with one GPU computes on cpu"),
        ((1, "gpubed-rank: node-0 was asked for GPUs, but"), "a job with one GPU fails: "),
    ],
)
def test_any_other_number_or_the_cpu_is_a_failure(job, reason):
    assert all(
        result == "fail" and said.startswith(reason) for result, said in of_slurm(job).values()
    )


def test_a_pretended_gpu_is_computed_on_the_cpu():
    job = "0|cpu (simulated A100-SXM4-80GB)"
    assert set(of_slurm(job, simulated=True).values()) == {("pass", "")}, (
        "verify calls it simulated"
    )


def test_a_node_that_offers_another_number_fails_and_one_at_work_is_only_counted():
    assert of_slurm(f"1|{GPU}", count=3)["node-1"][0] == "fail"
    assert of_slurm((1, "busy"), state="mixed")["node-1"] == ("pass", "")


@pytest.mark.parametrize(
    ("said", "simulated", "reason"),
    [
        (f"cuda:0 {GPU}\n1", False, ""),
        ("cpu cpu (simulated A100)\n1", True, ""),
        ("cpu cpu\n1", False, "the container computes on cpu cpu"),
        (f"cuda:0 {GPU}\n8", False, "the container was given one GPU, and has 8 device(s)"),
        ((1, "there is no NVIDIA driver"), False, "there is no NVIDIA driver; see nvidia-ctk"),
    ],
)
def test_a_container_begins_to_use_its_gpu_and_has_no_other(said, simulated, reason):
    for result, why in found(docker.gpus, simulated, **{"container.d": said}).values():
        assert result == ("fail" if reason else "pass")
        assert why.startswith(reason)


# It makes a link beside the driver's libraries, as NVIDIA's toolkit does, where it may.
CONTAINER = """[ $1 = run ] || exit 0
while [ $1 != --volume ]; do shift; done
echo "${2%%:*}"
case $2 in *:ro) ;; *) ln -s libGLX_nvidia.so.0 "${2%%:*}/lib/gpubed-link-of-a-test" ;; esac"""
MAY_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0 or MAY_MOUNT.returncode, reason="it mounts")
@pytest.mark.parametrize("layered", [True, False])
def test_what_the_toolkit_writes_beside_libraries_is_the_containers_alone(tmp_path, layered):
    host = ShellHost(tmp_path)
    host.program("docker", CONTAINER)
    if not layered:
        host.program("mount", "exit 1")
    script = docker._GPUS % ("image", "image", "image")
    done = host.sh(f"exec unshare --mount sh -c {shlex.quote(script)}")
    folder = Path(done.stdout.strip())
    assert (done.returncode, folder != Path("/usr")) == (0, layered), done.stderr
    assert not Path("/usr/lib/gpubed-link-of-a-test").is_symlink()
    assert not layered or not folder.parent.exists()
