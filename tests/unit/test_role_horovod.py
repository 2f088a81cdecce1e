"""What roles horovod and ssh_mesh write, rendered as Ansible does, and what is built."""

import os
import re
import runpy
import subprocess

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import machines, role_variables

BINDING = {"rank": 0, "gpu": 1, "cpus": "0-3", "hca": "mlx5_0"}
NODES = [{"name": "head-0", "slots": 0, "gpus": 0}, {"name": "node-0", "slots": 4, "gpus": 4}]


def render(role, name, **variables):
    text = (machines.ROOT / "roles" / role / "templates" / name).read_text()
    return Templar(DataLoader(), variables=variables).template(trust_as_template(text)).splitlines()


def test_a_node_without_ranks_is_in_no_hostfile():
    assert render("ssh_mesh", "hostfile.j2", gpubed_nodes=NODES) == ["node-0 slots=4"]


def test_the_page_has_every_setting_and_no_other():
    page = runpy.run_path(str(machines.ROOT / "docs/horovod_settings.py"))
    text = (machines.ROOT / "roles/horovod/templates/horovod.env.j2").read_text()
    written = set(re.findall(r'^(?: +: "\$\{)?([A-Z]\w+):?=', text, re.M))
    rows = {row.name: row for row in page["ROWS"]}
    assert rows.keys() - {"/etc/gpubed/ranks"} == {n for n in written if not n.startswith("GPUBED")}
    specs = yaml.safe_load((machines.ROOT / "roles/horovod/meta/argument_specs.yml").read_text())
    inputs = specs["argument_specs"]["main"]["options"].keys()
    assert {row.input for row in rows.values()} - {""} <= inputs


EXPERIMENT = {"subnet": "10.0.0.0/24", "rate_bps": 10**9}


def settings(release="debian-12", **given):
    """What ranks of node-0, with four of them, are told."""
    facts = role_variables.facts(release) | given.pop("facts", {}) | {"processor_nproc": 8}
    there = {
        "gpubed_nodes": NODES,
        "gpubed_networks": {"experiment": EXPERIMENT, "control": {"subnet": "10.1.0.0/24"}},
        "gpubed_one_host": False,
        "inventory_hostname": "node-0",
        "ansible_facts": facts,
        "__horovod_simulated": "",
    }
    return role_variables.value("horovod", "__horovod_settings", release, **{**there, **given})


def test_ranks_are_told_what_follows_from_their_node():
    assert settings() == {"threads": 2, "fusion_mb": None, "wait_us": 50}
    big = [{"name": "node-0", "slots": 2, "gpus": 2}]
    assert settings(gpubed_nodes=big)["wait_us"] == 0
    assert settings(gpubed_nodes=big, __horovod_simulated="A100")["wait_us"] == 50


def test_a_node_that_is_alone_is_found_by_its_own_address():
    """The plan's control network is nothing real where hosts come with their addresses."""
    networks = {"experiment": None, "control": {"subnet": "10.111.128.0/20"}}
    alone = [{"name": "node-0", "experiment_address": None, "control_address": "10.2.0.99"}]
    there = {"gpubed_networks": networks, "gpubed_nodes": alone, "inventory_hostname": "node-0"}
    for role, name in (("horovod", "__horovod_subnet"), ("nccl", "__nccl_network")):
        assert role_variables.value(role, name, "debian-12", **there) == "10.2.0.99/32"
    there["gpubed_networks"] = {**networks, "experiment": EXPERIMENT}
    for role, name in (("horovod", "__horovod_subnet"), ("nccl", "__nccl_network")):
        assert role_variables.value(role, name, "debian-12", **there) == "10.0.0.0/24"


@pytest.fixture
def told(tmp_path):
    """A function that reads the settings as ranks do, after others were set or not."""
    text = render(
        "horovod",
        "horovod.env.j2",
        ansible_managed="managed",
        inventory_hostname="node-0",
        __horovod_simulated="",
        __horovod_settings={"threads": 2, "fusion_mb": 382, "wait_us": 50},
        horovod_cycle_ms=2.5,
        __horovod_address="10.0.0.1",
        __horovod_secrets="/shared/rendezvous",
        __horovod_interface="eth1",
        __horovod_network={},
        __horovod_subnet="10.0.0.0/24",
        __horovod_node=NODES[1],
    )
    (tmp_path / "horovod.env").write_text("\n".join(text) + "\n")

    def read(**before):
        script = f"set -a; . {tmp_path}/horovod.env; env"
        done = subprocess.run(
            ["sh", "-c", script],
            env={"PATH": os.environ["PATH"], **before},
            capture_output=True,
            text=True,
            check=True,
        )
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return found.get("HOROVOD_FUSION_THRESHOLD"), found.get("HOROVOD_CYCLE_TIME")

    return read


@pytest.mark.process
def test_settings_of_a_node_are_for_those_who_ask_for_no_others(told):
    """`--fusion-threshold-mb` of the launcher comes first, and ranks read the file after it."""
    assert told() == (str(382 * 2**20), "2.5")
    assert told(HOROVOD_FUSION_THRESHOLD="1048576") == ("1048576", "2.5")


@pytest.mark.process
@pytest.mark.parametrize("variable", ["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "GPUBED_SLOTS"])
def test_a_rank_has_what_its_launcher_had_whatever_its_own_node_says(told, variable):
    """Ranks with thresholds of 0 and 128 MiB ended with a segmentation fault."""
    assert told(**{variable: "1"}) == (None, None)
    assert told(**{variable: "1"}, HOROVOD_FUSION_THRESHOLD="64") == ("64", None)


def test_ranks_that_are_not_to_be_bound_have_their_gpu_all_the_same():
    found = {"ansible_managed": "managed", "__horovod_bindings": [BINDING]}
    assert "0 1 0-3 mlx5_0" in render("horovod", "ranks.j2", **found, horovod_bind=True)
    assert "0 1 - mlx5_0" in render("horovod", "ranks.j2", **found, horovod_bind=False)
