"""What role slurm writes for nodes with GPUs, rendered as Ansible does."""

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import machines, role_variables, simulated

ROLE = machines.ROOT / "roles/slurm"
CPU = {"topology": {"CPUs": 8}, "memory": 30000}
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
        "slurm_partitions": [{"name": "main", "groups": [], "max_time": None}],
        "__slurm_confined": all(each["cgroup"] for each in offers),
        "__slurm_folder": "/etc/gpubed/slurm",
        "__slurm_gpu_types": types,
        "__slurm_memory_per_cpu": 3750,
        "__slurm_nodes": nodes,
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


def test_all_gpus_and_those_of_each_model_are_accounted_for():
    lines = render("slurm.conf.j2", [offer(A100), offer(T4), NONE])
    assert f"AccountingStorageTRES=gres/gpu,gres/gpu:{A100},gres/gpu:{T4}" in lines
    assert "AccountingStorageTRES=gres/gpu" in render("slurm.conf.j2", [NONE])


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
    lines = render("gres.conf.j2", [{**CPU, "gpus": found, "nvml": False, "cgroup": True}])
    assert [line.rpartition("File=/dev/nvidia")[2] for line in lines[1:]] == ["2", "3", "0", "1"]


def test_devices_of_which_the_driver_tells_nothing_are_given_out_too():
    found = role_variables.value(
        "slurm",
        "__slurm_gpus",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_nodes=[{"name": "node-0", "gpus": 2}],
        __slurm_gpu_devices={"files": [{"path": "/dev/nvidia10"}, {"path": "/dev/nvidia2"}]},
        __slurm_gpu_information={"stdout": ""},
    )
    assert [gpu["device"] for gpu in found] == ["/dev/nvidia2", "/dev/nvidia10"]


@pytest.mark.parametrize("nvml", [False, True])
def test_devices_are_named_and_compared_with_slurms_own_detection_where_it_is(nvml):
    detection = " AutoDetect=nvml" if nvml else ""
    assert render("gres.conf.j2", [offer(A100, A100, nvml=nvml), NONE])[1:] == [
        f"NodeName=node-0{detection} Name=gpu Type={A100} File=/dev/nvidia0",
        f"NodeName=node-0{detection} Name=gpu Type={A100} File=/dev/nvidia1",
    ]


@pytest.mark.parametrize("cgroup", [False, True])
def test_jobs_are_held_to_their_devices_where_all_nodes_have_cgroups(cgroup):
    offers = [offer(A100), offer(T4, cgroup=cgroup)]
    assert ("ConstrainDevices=yes" in render("cgroup.conf.j2", offers)) == cgroup
    assert ("TaskPlugin=task/cgroup,task/affinity" in render("slurm.conf.j2", offers)) == cgroup
