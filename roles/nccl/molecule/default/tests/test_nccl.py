"""Two nodes after role nccl, without RDMA adapters."""

import json

import pytest


@pytest.fixture
def settings(host):
    lines = host.file("/etc/nccl.conf").content_string.splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_collectives_use_the_interface_of_the_experiment_address(host, settings):
    name = host.check_output("hostname")
    address = host.check_output(f"getent ahostsv4 {name}").split()[0]
    (device,) = json.loads(host.check_output(f"ip -json -4 address show to {address}"))
    assert settings["NCCL_SOCKET_IFNAME"] == f"={device['ifname']}"


def test_without_an_adapter_rdma_is_off(host, settings):
    assert not host.file("/sys/class/infiniband").exists
    assert settings["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_NET" not in settings


def test_everyone_may_read_the_settings(host):
    assert host.file("/etc/nccl.conf").mode == 0o644
