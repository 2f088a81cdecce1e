"""What is asked of another cluster's Slurm, and what is read in its answers."""

import shlex

import pytest

from gpubed.backends.slurm import queue, request
from gpubed.backends.slurm.backend import SlurmBackend
from support.samples import sample_plan

# As Slurm 22.05 of Debian 12 answers, with the GRES of a larger site.
PARTITIONS = """\
cpu|up|2|idle|(null)
cpu|up|1|down*|(null)
gpu|up|3|idle|gpu:a100:4(S:0-1)
gpu|up|1|mixed|gpu:a100:4(S:0-1),gpu:v100:2
old|down|1|idle|gpu:2
"""
ASSOCIATIONS = "vision|normal,long\nspeech|normal\n"
ANSWERS = {"partitions": PARTITIONS, "associations": ASSOCIATIONS}


def plan(gpus=2, lease="90 min", memory="16 GiB", **backend):
    machine = {"cpus": 8, **({"memory": memory} if memory else {})}
    return sample_plan(
        backend={"type": "slurm", "login": "me@uni", **backend},
        nodes=[{"name": "node", "count": 3, "gpus": gpus, "machine": machine}],
        networks={},
        recipe="cuda13" if gpus else "cpu",
        lease={"duration": lease},
    )


def test_a_job_asks_for_what_the_specification_says():
    own = {"account": "vision", "partition": "gpu", "qos": "long", "constraint": "a100|h100"}
    assert request.options(plan(**own).spec, 3) == [
        "--account=vision",
        "--partition=gpu",
        "--qos=long",
        "--constraint=a100|h100",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=16384M",
        "--gres=gpu:2",
        "--time=90",
    ]


def test_what_is_not_named_is_not_asked_for():
    options = request.options(plan(gpus=0, memory=None, lease="61 s").spec, 1)
    assert options == ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=8", "--time=2"]


def test_a_jobs_script_loads_modules_and_keeps_words_apart():
    spec = plan(modules=["Python/3.12", "GCC"], setup=["export A=1"]).spec
    asked = spec.backend
    words = ["4", "python", "train.py", "two words", "$HOME"]
    script = request.script(asked, "/s/env/current", "/s/runs/r", {"B": "it's"}, words)
    first, *lines, last = script.splitlines()
    assert first == "#!/bin/bash -l"
    assert lines == [
        "cd /s/runs/r && [ ! -e .cancelled ] || exit 1",
        "module load Python/3.12 GCC || exit 1",
        "export A=1",
        "export B='it'\"'\"'s'",
    ]
    assert shlex.split(last)[-5:] == words


def test_partitions_are_read_with_their_gpus_and_free_nodes():
    offers = {one.name: one for one in queue.partitions(PARTITIONS).values()}
    assert [(o.total, o.free, o.gpus, o.gpu_model) for o in offers.values()] == [
        (3, 2, 0, ""),
        (4, 3, 4, "a100, v100"),
        (1, 1, 2, ""),
    ]
    assert offers["old"].note == "it takes no jobs now"
    assert queue.partitions("sinfo: error: Unable to contact slurm controller\n") == {}


@pytest.mark.parametrize(
    ("backend", "gpus", "option", "said"),
    [
        ({}, 4, "", ""),
        ({"partition": "gpus"}, 4, "partition", "no partition gpus; there are: cpu, gpu, old"),
        ({"partition": "old"}, 2, "partition", "partition old: it takes no jobs now"),
        ({"partition": "gpu"}, 8, "gpus", "no node of partition gpu has 8 GPU(s); the largest has"),
        ({"partition": "cpu"}, 1, "gpus", "has 1 GPU(s); the largest has 0"),
        (
            {"account": "robots"},
            4,
            "account",
            "you may not use account robots; there are: speech, vision",
        ),
        ({"qos": "urgent"}, 4, "qos", "you may not use qos urgent; there are: long, normal"),
        ({"account": "vision", "qos": "long"}, 4, "", ""),
    ],
)
def test_what_slurm_would_refuse_is_told_with_what_it_has(backend, gpus, option, said):
    spec = plan(gpus=gpus, **backend).spec
    found, why = queue.refused(spec.backend, gpus, ANSWERS)
    assert found == option
    assert said in why


def test_without_accounting_no_account_is_refused():
    spec = plan(account="any", qos="any").spec
    answers = {**ANSWERS, "associations": "sacctmgr: error: slurmdbd is not there\n"}
    assert queue.refused(spec.backend, 2, answers) == ("", "")


def test_slurms_own_words_are_told_once():
    said = ["sbatch: error: Invalid account or account/partition combination specified"]
    said += ["allocation failure: Invalid account or account/partition combination specified"]
    assert queue.refusal(said) == "Invalid account or account/partition combination specified"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"nodes": [{"name": n, "count": 1, "machine": {"cpus": 1}} for n in ("a", "b")]},
            "same number of",
        ),
        ({"nodes": [{"name": "a", "count": 1}]}, "whole CPUs per node"),
        ({"services": {"slurm": {}}}, "lends no nodes"),
    ],
)
def test_what_a_job_cannot_have_is_refused_in_the_file(change, says):
    spec = plan().spec
    document = {**spec.model_dump(mode="json", exclude_unset=True), **change}
    spec = type(spec).model_validate(document)
    assert any(says in problem.message for problem in SlurmBackend().check(spec))
