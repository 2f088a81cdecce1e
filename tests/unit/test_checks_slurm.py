"""What `gpubed verify` makes of the states that Slurm gives to nodes."""

import pytest

from gpubed.checks import slurm
from support.samples import sample_allocation, sample_plan

NODE = sample_allocation(sample_plan()).nodes[0]


@pytest.mark.parametrize(
    "state", ["idle", "allocated", "mixed", "completing", "planned", "mixed-", "allocated-"]
)
def test_a_node_that_works_or_is_planned_for_a_job_is_well(state):
    assert slurm._state(NODE, state, "none").result == "pass"


@pytest.mark.parametrize(
    ("state", "help_"),
    [
        ("drained", "broken fan; journalctl -u slurmd there, then scontrol update"),
        ("idle*", "broken fan; journalctl -u slurmd there, then scontrol update"),
        ("reserved", "it is reserved: scontrol show reservation"),
        ("idle$", "it is reserved: scontrol show reservation"),
        ("maint", "it is reserved: scontrol show reservation"),
    ],
)
def test_one_that_takes_no_job_is_not_and_its_help_fits(state, help_):
    check = slurm._state(NODE, state, "broken fan")
    assert (check.result, check.reason) == ("fail", help_)
