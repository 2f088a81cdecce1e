"""A node that looks after itself: the health program on programs with scripted answers."""

import json
from pathlib import Path

import pytest

FILES = Path(__file__).parents[2] / "roles/health/files"
EXPECTED = {"gpus": 2, "experiment_address": None, "shared_path": "", "min_free_gib": 0,
            "units": [], "patience": 2}  # fmt: skip
GOOD = "Enabled, 0, No, Not Active, Not Active, Not Active"
A100 = "NVIDIA A100-SXM4-40GB"
ROW = "{index}, 00000000:0{index}:00.0, {model}, {figures}"
LINKS = "".join(f"\t Link {number}: 25.781 GB/s\n" for number in range(12))
ERRORS = "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: {}\n\t Link 0: CRC Errors: 0\n\n"
# What drivers before 570 say.
NO_RECOVERY = (2, 'Field "gpu_recovery_action" is not a valid field to query.')
BOOT = "1795320000.000001 node-0 kernel: Linux version 6.1.0-41-amd64\n"


def gpus(*figures, model=A100):
    """Rows of `--query-gpu`; a GPU of which nothing is said is well."""
    rows = [ROW.format(index=i, model=model, figures=said) for i, said in enumerate(figures)]
    return "\n".join(rows)


def remapped(*figures, model=A100):
    return "\n".join(f"00000000:0{i}:00.0, {model}, {said}" for i, said in enumerate(figures))


def nvlinks(*lines):
    return "".join(
        f"GPU {i}: {A100} (UUID: GPU-0000000{i})\n{said}" for i, said in enumerate(lines)
    )


def logged(*lines):
    """The kernel's log, an hour after boot."""
    return BOOT + "\n".join(f"1795323600.{i:06} node-0 kernel: {x}" for i, x in enumerate(lines))


@pytest.fixture
def health(monkeypatch, tmp_path):
    """The program's modules, on a node whose programs give scripted answers."""
    monkeypatch.syspath_prepend(str(FILES))
    from gpubed_health import command, program
    from gpubed_health import gpus as looks

    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/version").write_text("580.95.05\n")
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps(EXPECTED))
    monkeypatch.setattr(program, "EXPECTED", expected)
    monkeypatch.setattr(program, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(program, "SPARE", tmp_path / "run/state.json", raising=False)
    program.SPARE.parent.mkdir()
    monkeypatch.setattr(program, "HOOKS", tmp_path / "hooks")
    monkeypatch.setattr(program, "METRICS", tmp_path / "metrics/gpubed-health.prom")
    monkeypatch.setattr(looks, "MODULE", tmp_path / "nvidia")
    monkeypatch.setattr(looks, "MODULES", tmp_path)
    answers = {
        "--query-gpu=index,pci": (0, gpus(GOOD, GOOD)),
        "--query-gpu=index,gpu_recovery_action": (0, "0, None\n1, None"),
        "--query-gpu=index,mig": (0, "0, Disabled\n1, Disabled"),
        "--query-remapped-rows": (0, remapped("0, 0", "0, 0")),
        "nvlink --status": (0, nvlinks(LINKS, LINKS)),
        "nvlink --errorcounters": (0, nvlinks(ERRORS.format(0), ERRORS.format(0))),
        "journalctl --dmesg": (0, logged()),
        "--lines=1 --until": (0, "Linux version 6.1.0"),
        "journalctl --boot": (0, "systemd[1]: Started something"),
        "modinfo": (0, "580.95.05"),
    }

    def run(*words):
        line = " ".join(words)
        return next(answer for question, answer in answers.items() if question in line)

    monkeypatch.setattr(command, "run", run)
    program.answers = answers
    return program


def found(health, memory=None, **changed):
    names = {
        "gpus": "--query-gpu=index,pci",
        "recovery": "--query-gpu=index,gpu_recovery_action",
        "rows": "--query-remapped-rows",
        "links": "nvlink --status",
        "journal": "journalctl --dmesg",
    }
    health.answers |= {
        names[key]: (0, answer) if isinstance(answer, str) else answer
        for key, answer in changed.items()
    }
    return health.problems(EXPECTED, {} if memory is None else memory)
