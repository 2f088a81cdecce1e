"""What a person reads of `gpubed status`: what is wrong first, skipped checks as a number."""

import pytest

from gpubed.cli import report
from gpubed.cli.ui import UI


def check(id_, result, reason="", node="node-0"):
    return {
        "id": id_,
        "node": node,
        "result": result,
        "reason": reason,
        "value": None,
        "unit": "",
        "limit": "",
    }


CHECKS = [
    check("ssh.mesh", "pass"),
    check("link.rate", "fail", "too slow"),
    *(check(f"gpu.{number}", "skip", "the node has no GPU") for number in range(23)),
]


UNWELL = {"state": "quarantined", "reason": "fan is loud"}


def document(state="ready", worker=()):
    row = {
        "state": "ready",
        "reason": "",
        "role": "worker",
        "hardware": None,
        "control_address": "10.0.0.2",
        "experiment_address": "10.1.0.2",
    }
    summary = {"age_s": 180.0, "passed": 1, "failed": 1, "skipped": 23, "simulated": 0}
    return {
        "state": state,
        "nodes": [
            row | {"name": "node-0", "role": "head"},
            row | {"name": "node-1", **dict(worker)},
        ],
        "failed": [],
        "lease": {"granted_until": None, "remaining_s": None},
        "stopped": [],
        "services": [{"name": "jupyterlab", "url": "https://10.0.0.1:8888/", "reason": ""}],
        "verification": {**summary, "checks": CHECKS},
    }


@pytest.fixture
def read(capsys):
    """A function that returns the lines that a person reads, in their order."""

    def lines(*given, **options):
        ui = UI()
        ui.err = ui.out  # both are the same terminal
        report.cluster(ui, "lab", *given, **options)
        return capsys.readouterr().out.splitlines()

    return lines


def test_skipped_checks_are_counted(read):
    lines = read(document())
    assert not [line for line in lines if "the node has no GPU" in line]
    [total] = [line for line in lines if line.startswith("verified")]
    assert total == "verified 3 min ago: 1 passed, 1 failed, 23 skipped"


def test_with_v_they_are_listed_with_their_reasons(read):
    lines = read(document(), whole=True)
    assert len([line for line in lines if "the node has no GPU" in line]) == 23
    assert [line for line in lines if "ssh.mesh" in line]


def test_what_is_wrong_comes_first_and_says_what_ends_it(read):
    lines = read(document("degraded", UNWELL))
    assert lines[0].strip() == "✗ node-1 is quarantined, so jobs leave it out: fan is loud"
    assert lines[1] == "when it is repaired: gpubed health lab --requalify node-1"
    assert next(n for n, line in enumerate(lines) if line.split()[:1] == ["node"]) > 1


def test_a_full_disk_says_where_to_free_space(read):
    full = {"state": "full", "reason": "/var is 100 % full (0 MiB are free)"}
    lines = read(document("degraded", full))
    assert lines[0].strip() == "✗ node-1: /var is 100 % full (0 MiB are free)"
    assert lines[1] == "free space there: gpubed ssh lab node-1, then gpubed up lab"
    assert not [line for line in lines if "leave it out" in line]


def test_a_cluster_that_is_well_says_so_first(read):
    assert read(document())[0].strip() == "✓ lab is ready"
