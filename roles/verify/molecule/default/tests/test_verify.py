"""Two nodes after role verify."""

import json


def test_facts_name_a_failed_unit(host):
    host.run("systemd-run --unit=broken --wait false")
    try:
        found = json.loads(host.check_output("/usr/local/bin/gpubed-facts"))
        assert found["failed_units"] == ["broken.service"]
    finally:
        host.run("systemctl reset-failed broken")


def test_facts_know_the_free_space(host):
    found = json.loads(host.check_output("/usr/local/bin/gpubed-facts"))
    assert 0 < found["root_free_percent"] <= 100
