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


def test_the_program_that_lets_gpus_compute_is_there(host):
    # It needs the environment of jobs, which these nodes lack.
    program = host.file("/usr/local/bin/gpubed-gpus")
    assert program.mode == 0o755
    assert program.content_string.startswith("#!/usr/bin/env -S /usr/local/bin/gpubed-rank python")
