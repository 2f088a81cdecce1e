"""Two nodes after role hardware."""

import json
import os
from pathlib import Path

import pytest

GPUS = "for d in /sys/bus/pci/devices/*; do cat $d/vendor $d/class | tr '\\n' ' '; echo; done"


@pytest.fixture(scope="module")
def facts(host):
    return json.loads(host.check_output("/usr/local/bin/gpubed-facts"))


def test_facts_name_the_host(host, facts):
    assert facts["host"] == host.check_output("hostname")


def test_facts_know_both_networks(facts):
    assert len([nic for nic in facts["interfaces"] if nic["addresses"]]) == 2


def test_facts_find_the_gpus_that_are_on_the_bus(host, facts):
    found = [line.split() for line in host.check_output(GPUS).splitlines()]
    gpus = [device for device in found if device[0] == "0x10de" and device[1].startswith("0x030")]
    assert len(facts["gpus"]) == len(gpus)


def test_facts_know_the_machines_disks(host, facts):
    names = host.check_output("for d in /sys/block/*/device; do dirname $d; done").split()
    assert [disk["name"] for disk in facts["disks"]] == sorted(Path(n).name for n in names)


def test_facts_count_every_cpu_of_a_numa_node(host, facts):
    nodes = host.run("ls -d /sys/devices/system/node/node[0-9]*").stdout.split()
    assert len(facts["numa"]) == len(nodes)


def test_facts_are_kept_on_the_controller(facts):
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
    kept = [json.loads(path.read_text()) for path in folder.glob(".gpubed/*/facts/*.json")]
    assert facts["host"] in {document["host"] for document in kept}
    assert {document["schema"] for document in kept} == {"gpubed/facts/2"}
