"""What a node finds wrong with itself; the GPU tools are stand-ins that print synthetic output."""

import json
from pathlib import Path

import pytest

from support import by_path

PROGRAM = Path(__file__).parents[2] / "roles/health/files/gpubed-health"
EXPECTED = {"gpus": 2, "experiment_address": None, "shared_path": "", "min_free_gib": 0,
            "units": [], "patience": 2}  # fmt: skip


@pytest.fixture
def node(monkeypatch, tmp_path):
    module = by_path.load(PROGRAM, "gpubed_health")
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps(EXPECTED))
    monkeypatch.setattr(module, "EXPECTED", expected)
    monkeypatch.setattr(module, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(module, "HOOKS", tmp_path / "hooks")
    module.answers = {"nvidia-smi": (0, "0, 0, 0\n1, 0, 0"), "journalctl": (0, "")}
    monkeypatch.setattr(module, "run", lambda *command: module.answers[command[0]])
    return module


def found(node, **answers):
    node.answers |= answers
    return node.problems(EXPECTED)


def test_good_gpus_are_no_problem(node):
    assert found(node) == []


def test_a_gpu_that_is_lost_is_counted(node):
    assert found(node, **{"nvidia-smi": (0, "0, 0, 0")}) == ["1 GPUs answer, 2 are expected"]


def test_a_driver_that_does_not_answer_is_told_in_its_words(node):
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert found(node, **{"nvidia-smi": (9, said)}) == [f"nvidia-smi fails: {said}"]


def test_uncorrectable_ecc_errors_are_told(node):
    answer = (0, "0, 3, 0\n1, [N/A], [N/A]")
    assert found(node, **{"nvidia-smi": answer}) == ["GPU 0 has 3 uncorrectable ECC errors"]


def test_a_failed_row_remapping_is_told(node):
    assert found(node, **{"nvidia-smi": (0, "0, 0, 0\n1, 0, 1")}) == [
        "GPU 1 has no rows left to remap"
    ]


@pytest.mark.parametrize(("xid", "fatal"), [(79, True), (48, True), (31, False), (13, False)])
def test_only_xids_of_broken_hardware_count(node, xid, fatal):
    line = f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1234, name=python"
    wanted = [f"GPU 0000:3b:00 reported Xid {xid}"] if fatal else []
    assert found(node, journalctl=(0, f"{line}\n{line}")) == wanted


def test_one_failing_look_is_not_yet_a_quarantine(node, capsys):
    node.answers["nvidia-smi"] = (0, "0, 0, 0")
    assert node.main("watch") == 1
    assert node.read_state() == {"quarantine": None, "failing_looks": 1}
    assert node.main("watch") == 1
    assert node.read_state()["quarantine"]["reason"] == "1 GPUs answer, 2 are expected"


def test_a_good_look_in_between_starts_the_count_anew(node):
    for answer in ("0, 0, 0", "0, 0, 0\n1, 0, 0", "0, 0, 0"):
        node.answers["nvidia-smi"] = (0, answer)
        node.main("watch")
    assert node.read_state() == {"quarantine": None, "failing_looks": 1}


def test_only_a_good_node_is_requalified(node):
    node.main("quarantine", "fan", "is", "loud")
    node.answers["nvidia-smi"] = (0, "0, 0, 0")
    assert node.main("requalify") == 1
    assert node.read_state()["quarantine"]["reason"] == "fan is loud"
    node.answers["nvidia-smi"] = (0, "0, 0, 0\n1, 0, 0")
    assert node.main("requalify") == 0
    assert node.read_state()["quarantine"] is None
