"""Two nodes after role health."""

import json

import pytest

UNIT = "/run/systemd/system/slurmd.service"


def status(host):
    return json.loads(host.run("gpubed-health status").stdout)


@pytest.fixture
def failing(host):
    """A unit that jobs depend on has failed."""
    host.check_output(f"printf '[Service]\\nExecStart=/bin/false\\n' > {UNIT}")
    host.run("systemctl daemon-reload; systemctl start slurmd.service; sleep 0.5")
    yield
    host.check_output(f"rm {UNIT}")
    host.run("systemctl reset-failed slurmd.service; systemctl daemon-reload")
    assert host.run("gpubed-health requalify").rc == 0


def test_a_good_node_is_well(host):
    assert host.run("gpubed-health check").rc == 0
    assert status(host) == {"problems": [], "quarantine": None}


def test_it_looks_regularly(host):
    timer = host.service("gpubed-health.timer")
    assert timer.is_running
    assert timer.is_enabled


def test_a_failed_unit_is_named(host, failing):
    found = host.run("gpubed-health check")
    assert found.rc == 1
    assert "slurmd.service has failed" in found.stdout


def test_the_second_failing_look_quarantines_and_tells_the_hooks(host, failing):
    hook = "/etc/gpubed/quarantine.d/50-told"
    host.check_output(
        f"printf '#!/bin/sh\\necho \"$@\" >> /run/told\\n' > {hook} && chmod 755 {hook}"
    )
    host.run("gpubed-health watch")
    assert status(host)["quarantine"] is None
    host.run("systemctl start gpubed-health.service")
    assert "slurmd.service has failed" in status(host)["quarantine"]["reason"]
    assert host.run("gpubed-health requalify").rc == 1, "it is still failing"
    assert status(host)["quarantine"]
    assert host.file("/run/told").content_string.startswith("quarantine slurmd.service has failed")
    host.check_output(f"rm {hook} /run/told")


def test_a_person_may_quarantine_a_node_that_is_well(host):
    host.check_output("gpubed-health quarantine fan is loud")
    assert status(host)["quarantine"]["reason"] == "fan is loud"
    assert "in quarantine since" in host.run("gpubed-health check").stdout
    assert host.run("gpubed-health requalify").rc == 0
    assert host.run("gpubed-health check").rc == 0


def test_a_shared_folder_that_is_not_there_is_noticed(host):
    host.check_output("sed 's#/shared#/nowhere#' /etc/gpubed/health.json > /run/expected.json")
    found = host.run("GPUBED_HEALTH_EXPECTED=/run/expected.json gpubed-health check")
    assert (found.rc, "/nowhere does not answer" in found.stdout) == (1, True)
