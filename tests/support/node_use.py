"""The program that writes down what a node is used for, and looks of it that were never taken."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

FILES = Path(__file__).parents[2] / "roles/health/files"
HOUR = 500_000
QUIET = {
    "boot": "b",
    "uptime": 100.0,
    "work": [],
    "processes": {},
    "ranks": [],
    "gpus": [],
    "terminals": {},
    "kernels": {},
    "logins": {},
    "own": [],
    "mute": [],
}


@pytest.fixture
def use(monkeypatch, tmp_path):
    """The program's modules; what it keeps is in a folder of the test."""
    monkeypatch.syspath_prepend(str(FILES))
    monkeypatch.setattr(signal, "alarm", lambda _: None)  # it would end the tests, too
    from gpubed_use import judging, jupyter, machine, processes, program

    expected = tmp_path / "expected.json"
    expected.write_text('{"gpus": 0}')
    monkeypatch.setattr(program, "EXPECTED", expected)
    monkeypatch.setattr(program, "STATE", tmp_path / "use.json")
    monkeypatch.setattr(program, "WARNED", tmp_path / "warned")
    monkeypatch.setattr(program, "OWN", tmp_path / "own")
    monkeypatch.setattr(program, "METRICS", tmp_path / "metrics/gpubed-use.prom")
    return SimpleNamespace(
        judging=judging, jupyter=jupyter, machine=machine, processes=processes, program=program
    )


def fold(use, *looks):
    """The record after looks, a minute apart; each says what differs from a quiet one."""
    record = use.judging.first()
    for number, changes in enumerate(looks):
        seen = {**QUIET, "uptime": 100.0 + 60 * number, **changes}
        record = use.judging.fold(record, seen, HOUR)
    return record
