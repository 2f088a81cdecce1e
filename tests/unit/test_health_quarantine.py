"""When a node takes itself out of use, and how it comes back."""

import pytest

from support import exposition
from support.node_looks import EXPECTED, GOOD, found, gpus


def test_one_failing_look_is_not_yet_a_quarantine(health, capsys):
    found(health, gpus=gpus(GOOD))
    assert health.main("watch") == 0, "it has looked"
    state = health.read_state()
    assert (state["quarantine"], state["failing_looks"]) == (None, 1)
    assert health.main("watch") == 0
    assert health.read_state()["quarantine"]["reason"] == "1 GPUs answer, 2 are expected"
    assert "1 GPUs answer" in capsys.readouterr().out


def test_before_a_job_a_node_that_is_not_well_is_quarantined(health, monkeypatch, capsys):
    """Slurm drains it: gpubed must know, and one word must end both."""
    found(health, gpus=gpus(GOOD))
    waits = []
    monkeypatch.setattr(health.time, "sleep", waits.append)
    assert health.main("admit") == 1
    assert len(waits) == EXPECTED["patience"] - 1, "as many looks as a watch would need"
    reason = "before a job: 1 GPUs answer, 2 are expected"
    assert health.read_state()["quarantine"]["reason"] == reason
    assert "1 GPUs answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "own"),
    [(("quarantine", "fan is loud"), False), (("fault", "no homes"), True), (("watch",), True)],
)
def test_it_is_known_whether_a_person_took_the_node_out_of_use(health, words, own):
    found(health, gpus=gpus(GOOD))
    for _ in range(2):
        health.main(*words)
    assert health.read_state()["quarantine"]["own"] is own


def test_only_a_good_node_is_requalified(health):
    health.main("quarantine", "fan", "is", "loud")
    found(health, gpus=gpus(GOOD))
    assert health.main("requalify") == 1
    assert health.read_state()["quarantine"]["reason"] == "fan is loud"
    found(health, gpus=gpus(GOOD, GOOD))
    assert health.main("requalify") == 0
    assert health.read_state()["quarantine"] is None


def test_monitoring_is_told_of_problems_and_quarantine(health):
    health.METRICS.parent.mkdir()
    found(health, gpus=gpus(GOOD))
    told = []
    for verb in ("watch", "watch"):
        health.main(verb)
        told.append(exposition.read(health.METRICS.read_text()))
    assert told == [
        {
            ("gpubed_node_quarantined", ("reason", reason)): bool(reason),
            ("gpubed_node_problems",): 1,
        }
        for reason in ("", "1 GPUs answer, 2 are expected")
    ]


def test_a_state_that_cannot_be_read_keeps_jobs_away(health):
    health.STATE.write_text("{")
    assert health.main("check") == 1
    assert "cannot be read" in health.read_state()["quarantine"]["reason"]
    assert health.main("requalify") == 0
