"""What `gpubed verify` makes of the states that Slurm gives to nodes."""

from types import SimpleNamespace

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
        ("reserved", "somebody has reserved it: scontrol show reservation"),
        ("idle$", "somebody has reserved it: scontrol show reservation"),
        ("maint", "somebody has reserved it: scontrol show reservation"),
    ],
)
def test_one_that_takes_no_job_is_not_and_its_help_fits(state, help_):
    check = slurm._state(NODE, state, "broken fan")
    assert (check.result, check.reason) == ("fail", help_)


def test_a_gpu_is_tried_in_a_partition_that_has_the_node():
    """Slurm refuses a node that is not in the default partition."""
    ran = []

    class Head:
        def run(self, _, *words, check):
            ran.append(words)
            return SimpleNamespace(exit_code=0, stdout="0|cuda:0", stderr="")

    partitions = [{"name": "first", "groups": ["other"]}, {"name": "own", "groups": ["node"]}]
    nodes = [{"name": "node", "count": 3}, {"name": "other", "count": 1}]
    plan = sample_plan(nodes=nodes, services={"slurm": {"partitions": partitions}})
    context = SimpleNamespace(head=Head(), plan=plan, simulated=())
    assert not slurm._gpu_job(context, NODE)
    assert ran == [(NODE.name, "own")]
    plan = sample_plan(nodes=nodes, services={"slurm": {"partitions": partitions[:1]}})
    why = slurm._gpu_job(SimpleNamespace(head=Head(), plan=plan, simulated=()), NODE)
    assert why == "no partition has group node: see services.slurm.partitions"
