"""A row of docs/reference/faults.md credits who repaired; nothing is broken here."""

from subprocess import CompletedProcess

import pytest

from support.faults.play import Fault, Played
from support.faults.ways import FAULTS

UP, OTHER = "gpubed up lab", "gpubed up lab --refresh"


def row(fault, *codes):
    done = [CompletedProcess([], code, "", "lab is held") for code in codes]
    played = Played(fault, {}, done[0], [(UP, one, 3.0) for one in done], whole=True, kept=True)
    return played.row.split(" | ")[3]


@pytest.mark.parametrize(
    ("codes", "credit"), [((5,), f"`{OTHER}`, the other run"), ((0,), f"`{UP}`")]
)
def test_a_run_that_was_refused_repaired_nothing(codes, credit):
    [busy] = [fault for fault in FAULTS if fault.name == "two-runs"]
    assert row(busy, *codes) == credit


def test_elsewhere_the_commands_that_were_followed_count():
    assert row(Fault("x", "x", lambda _: iter(())), 1, 0) == f"`{UP}`, then `{UP}`"
