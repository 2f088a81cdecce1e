"""What role slurm writes for nodes with GPUs, rendered as Ansible does; how its ranks start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import by_path, machines, role_variables, simulated

ROLE = machines.ROOT / "roles/slurm"
CPU = {"topology": {"CPUs": 8}, "memory": 30000, "slices": [], "mig": "", "shards": 0}
A100, T4 = "nvidia_a100-sxm4-80gb", "tesla_t4"
NONE = {**CPU, "gpus": [], "nvml": False, "cgroup": True}


def offer(*types, nvml=False, cgroup=True):
    gpus = [{"device": f"/dev/nvidia{i}", "type": type_} for i, type_ in enumerate(types)]
    return {**CPU, "gpus": gpus, "nvml": nvml, "cgroup": cgroup}


def render(name, offers):
    nodes = [f"node-{i}" for i in range(len(offers))]
    types = sorted({gpu["type"] for each in offers for gpu in each["gpus"]} - {""})
    variables = {
        "ansible_managed": "managed",
        "gpubed_cluster": "lab",
        "gpubed_head": "node-0",
        "gpubed_nodes": [{"name": node, "control_address": "10.0.0.1"} for node in nodes],
        "groups": {},
        "hostvars": {n: {"__slurm_offer": o} for n, o in zip(nodes, offers, strict=True)},
        "slurm_half_life": 604800,
        "slurm_home_root": "/shared/home",
        "slurm_partitions": [{"name": "main", "groups": [], "max_time": None}],
        "__slurm_confined": all(each["cgroup"] for each in offers),
        "__slurm_folder": "/etc/gpubed/slurm",
        "__slurm_gpu_types": types,
        "__slurm_memory_per_cpu": 3750,
        "__slurm_nodes": nodes,
        "__slurm_part_types": [
            *(["slice"] if any(each["slices"] for each in offers) else []),
            *(["shard"] if any(each["shards"] for each in offers) else []),
        ],
        "__slurm_srun_ports": "60001-61000",
    }
    text = (ROLE / "templates" / name).read_text()
    return Templar(DataLoader(), variables=variables).template(trust_as_template(text)).splitlines()


def node_lines(offers):
    lines = render("slurm.conf.j2", offers)
    return [line.partition(" RealMemory=30000")[2] for line in lines if line.startswith("NodeName")]


def test_nodes_offer_their_gpus_by_model():
    offers = [offer(A100, A100), offer(T4), offer(A100, T4), offer("", ""), NONE]
    assert node_lines(offers) == [
        f" Gres=gpu:{A100}:2 State=UNKNOWN",
        f" Gres=gpu:{T4}:1 State=UNKNOWN",
        f" Gres=gpu:{A100}:1,gpu:{T4}:1 State=UNKNOWN",
        " Gres=gpu:2 State=UNKNOWN",
        " State=UNKNOWN",
    ]


def test_parts_of_gpus_have_names_of_their_own():
    """Whoever asks for gpu gets no slice."""
    slices = [f"/dev/nvidia0,/dev/nvidia-caps/nvidia-cap{first}" for first in (12, 21)]
    offers = [{**NONE, "mig": "1g.10gb", "slices": slices}, {**offer(T4), "shards": 4}, NONE]
    assert node_lines(offers) == [
        " Gres=slice:1g.10gb:2 State=UNKNOWN",
        f" Gres=gpu:{T4}:1,shard:4 State=UNKNOWN",
        " State=UNKNOWN",
    ]
    assert "GresTypes=gpu,slice,shard" in render("slurm.conf.j2", offers)
    assert render("gres.conf.j2", offers)[1:3] == [
        f"NodeName=node-0 Name=slice Type=1g.10gb MultipleFiles={files}" for files in slices
    ]


def test_gpus_have_the_numbers_of_the_driver_not_those_of_their_device_files():
    """As on an AMD board: what ranks and containers call GPU 0 is /dev/nvidia2 there.

    Without its own detection, Slurm counts GPUs in the order of gres.conf.
    """
    board = simulated.machine.machine(simulated.model("A100-SXM4-80GB"), 8, "node-0", cpus=[0])
    told = "".join(
        f"Model: \t\t {board['model']['name']}\nBus Location: \t {gpu['pci']}\n"
        f"Device Minor: \t {gpu['minor']}\n"
        for gpu in board["gpus"]
    )
    paths = [{"path": f"/dev/nvidia{number}"} for number in range(8)]
    found = role_variables.value(
        "slurm",
        "__slurm_gpus",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_nodes=[{"name": "node-0", "gpus": 4}],
        __slurm_gpu_devices={"files": paths},
        __slurm_gpu_information={"stdout": told},
    )
    assert [gpu["device"] for gpu in found] == [f"/dev/nvidia{number}" for number in (2, 3, 0, 1)]
    lines = render("gres.conf.j2", [{**NONE, "gpus": found}])
    assert [line.rpartition("File=/dev/nvidia")[2] for line in lines[1:]] == ["2", "3", "0", "1"]


@pytest.mark.parametrize("cgroup", [False, True])
def test_jobs_are_held_to_their_devices_where_all_nodes_have_cgroups(cgroup):
    offers = [offer(A100), offer(T4, cgroup=cgroup)]
    assert ("ConstrainDevices=yes" in render("cgroup.conf.j2", offers)) == cgroup
    assert ("TaskPlugin=task/cgroup,task/affinity" in render("slurm.conf.j2", offers)) == cgroup


@pytest.fixture
def prolog(tmp_path):
    """A function that runs a prolog, and returns its exit code and what gpubed-health was asked."""
    program, asked = tmp_path / "gpubed-health", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\n# STAND-IN\necho "$*" >>{asked}\n[ "$1" != admit ]\n')
    program.chmod(0o755)

    def run(text):
        text = text.replace("/usr/local/bin/gpubed-health", str(program))
        code = subprocess.run(["sh", "-c", text], check=False).returncode
        return code, asked.read_text().splitlines() if asked.exists() else []

    return run


@pytest.mark.process
def test_a_node_that_is_drained_before_a_job_is_in_quarantine(prolog):
    """Slurm drains whose prolog fails, for good: --requalify is the one way back."""
    assert prolog((ROLE / "files/prolog-health").read_text()) == (1, ["admit"])


@pytest.mark.process
def test_a_node_without_researchers_homes_is_in_quarantine(prolog, tmp_path):
    text = "\n".join(render("prolog-storage.j2", [NONE]))
    assert prolog(text.replace("/shared/home", str(tmp_path))) == (0, [])
    [asked] = prolog(text.replace("/shared/home", "/nowhere"))[1]
    assert asked.startswith("fault before a job: /nowhere is not there")


@pytest.fixture
def srun(monkeypatch):
    """The program that starts ranks in a job."""
    program = by_path.load(ROLE / "files/gpubed-srun", "gpubed_srun")
    slot = {"rank": 1, "local_rank": 1, "local_size": 2}
    monkeypatch.setattr(os, "environ", {program.SLOTS: json.dumps([{}, slot])})
    return program


def test_a_rank_whose_job_asked_for_no_gpu_sees_none(srun, monkeypatch):
    monkeypatch.setattr(os, "execvp", lambda *_: None)
    os.environ |= {"SLURM_PROCID": "1", "SLURM_CPUS_ON_NODE": "8"}
    srun.become_rank(["true"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["HOROVOD_LOCAL_RANK"] == "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    srun.become_rank(["true"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.fixture
def started(srun, monkeypatch, tmp_path):
    """Return a function that starts two ranks of a command: what srun was given, and the secret."""
    given = []
    hosts = SimpleNamespace(
        parse_hosts=lambda _: [SimpleNamespace(slots=2)],
        get_host_assignments=lambda *_: [
            SimpleNamespace(hostname="node-0", rank=r) for r in (0, 1)
        ],
    )
    server = SimpleNamespace(start=lambda: 7, init=lambda _: None)
    rendezvous = SimpleNamespace(RendezvousServer=lambda: server)
    for name, module in (("common.util.hosts", hosts), ("http.http_server", rendezvous)):
        monkeypatch.setitem(sys.modules, f"horovod.runner.{name}", module)

    def run(words, env, check):
        secret = env.get("HOROVOD_SECRET_FILE")
        given.append((words, env, secret and Path(secret).read_text()))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(srun.subprocess, "run", run)
    monkeypatch.setattr(srun.socket, "gethostbyname", lambda _: "10.0.0.1")
    os.environ |= {
        "SLURM_JOB_ID": "7",
        "GPUBED_ADDRESS": "10.0.0.1",
        "GPUBED_SECRETS": str(tmp_path),
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    }

    def start(*command):
        assert srun.start("node-0:2", [*command]) == 0
        assert not list(tmp_path.iterdir()), "the secret ends with its run"
        return given.pop()

    return start


def test_ranks_find_each_other_with_a_secret_of_the_run(started):
    words, environment, secret = started("true")
    assert len(secret) >= 32
    assert secret not in " ".join([*words, *environment.values()])
    assert started("true")[2] != secret
