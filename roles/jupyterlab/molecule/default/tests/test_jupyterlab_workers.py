"""A node that is not the head, after role jupyterlab."""

import pytest


@pytest.fixture(autouse=True)
def workers_only(host):
    if host.check_output("hostname") == "node-0":
        pytest.skip("JupyterLab is on the head")


def test_no_service_is_installed(host):
    assert not host.file("/etc/systemd/system/jupyterlab.service").exists


def test_nothing_listens_on_the_port(host):
    assert not host.socket("tcp://0.0.0.0:8888").is_listening


def test_the_key_is_not_here(host):
    assert not host.file("/etc/gpubed/jupyterlab").exists
