"""When a node takes itself out of use, and how it comes back."""

import json

import pytest

from support import exposition
from support.node_looks import EXPECTED, GOOD, found, gpus, health, logged

__all__ = ["health"]


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


def test_a_scheduler_that_did_not_hear_is_told_again(health, capsys):
    """It restarts now and again, and would keep the node away for good."""
    health.main("quarantine", "fan is loud")
    deaf = health.HOOKS / "50-scheduler"
    health.HOOKS.mkdir()
    deaf.touch()
    heard = []
    health.answers[str(deaf)] = (1, "slurm_update error: Unable to contact slurm controller")
    assert health.main("requalify") == 0
    assert "Unable to contact slurm controller" in capsys.readouterr().err
    health.main("watch")
    assert health.read_state()["untold"] == ["requalify"]
    health.answers[str(deaf)] = (0, "")
    run = health.command.run
    health.command.run = lambda *words: heard.append(words) or run(*words)
    for _ in range(2):
        health.main("watch")
    assert [words[1:] for words in heard if words[0] == str(deaf)] == [("requalify",)]
    assert health.read_state()["untold"] == []


@pytest.mark.parametrize("verb", ["back", "requalify"])
def test_what_broke_during_a_programs_quarantine_is_not_forgotten_with_it(health, verb):
    """A person who requalifies has repaired it; a lease that is renewed repairs nothing."""
    health.main("fault", "its lease ends")
    found(health, journal=logged("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained"))
    health.time.time, real = lambda: 1795327200.0, health.time.time
    try:
        for _ in range(2):
            health.main("watch")
        assert health.read_state()["quarantine"]["reason"] == "its lease ends"
        assert health.main(verb) == (1 if verb == "back" else 0)
    finally:
        health.time.time = real
    held = health.read_state()["quarantine"]
    assert ("Xid 95" in held["reason"]) if verb == "back" else (held is None)
    found(health, journal=logged())
    assert health.main(verb) == 0
    assert health.read_state()["quarantine"] is None


def test_an_xid_of_before_the_requalification_does_not_count_again(health):
    found(health, journal=logged("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained"))
    health.time.time, real = lambda: 1795327200.0, health.time.time
    try:
        assert health.main("check") == 1
        assert health.main("requalify") == 0
    finally:
        health.time.time = real
    assert health.main("check") == 0
    later = "1795330000.000001 node-0 kernel: NVRM: Xid (PCI:0000:3b:00): 95, Uncontained"
    found(health, journal=logged() + later)
    assert health.main("check") == 1


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


@pytest.fixture
def full(health):
    """The files that cannot be written, since the disk is full; removed, it has room again."""
    drafts = health.STATE.with_suffix(".new"), health.METRICS.with_suffix(".new")
    health.METRICS.parent.mkdir()
    for draft in drafts:
        draft.symlink_to("/dev/full")
    return drafts


def test_a_quarantine_outlasts_the_full_disk(health, full, capsys):
    health.STATE.write_text('{"failing_looks": 1}')
    assert health.main("quarantine", "fan is loud") == 0
    assert "No space left on device" in capsys.readouterr().err
    for draft in full:
        draft.unlink()
    assert health.main("watch") == 0
    assert json.loads(health.STATE.read_text())["quarantine"]["reason"] == "fan is loud"
    assert health.main("requalify") == 0
    assert health.main("status") == 0
