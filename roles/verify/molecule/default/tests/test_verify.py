"""Two nodes after role verify."""

import json

import pytest


@pytest.fixture
def facts(host):
    return json.loads(host.check_output("/usr/local/bin/gpubed-facts"))


def test_facts_name_the_host(host, facts):
    assert facts["host"] == host.check_output("hostname")


def test_facts_know_both_networks(facts):
    assert len([nic for nic in facts["interfaces"] if nic["addresses"]]) == 2


def test_facts_find_no_gpu_where_there_is_none(host, facts):
    assert not host.exists("nvidia-smi")
    assert facts["gpus"] == []


def test_facts_name_a_failed_unit(host):
    host.run("systemd-run --unit=broken --wait false")
    try:
        found = json.loads(host.check_output("/usr/local/bin/gpubed-facts"))
        assert found["failed_units"] == ["broken.service"]
    finally:
        host.run("systemctl reset-failed broken")
