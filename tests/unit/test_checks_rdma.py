"""The ladder of RDMA checks, with sessions that answer what a test wants (no device here)."""

from types import SimpleNamespace

import pytest

from gpubed.checks import rdma
from gpubed.checks.context import Context
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support.samples import sample_allocation, sample_plan

TABLE = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      500              0.21               0.19               0.000362
"""


class FakeSession:
    """Answers the commands of the ladder; `moved` packets are counted after each program."""

    def __init__(self, node, **answers):
        self.node = node
        self.answers = {"device": "rxe0", "moved": 40_000, "rping": 0, "sums": True, **answers}
        self.sent = 0

    def run(self, command, *args, **_):
        return CommandResult(*self._answer(command), 0.1)

    def _answer(self, command):
        answers = self.answers
        if "NCCL_IB_HCA" in command:
            return answers.get("ports", f"{answers['device']}:1\n\n"), "", 0
        if "hw_counters" in command:
            return f"1024 packets {self.sent}", "", 0
        if "rping" in command:
            return "", "cannot connect", answers["rping"]
        if "ib_write_bw" in command:
            self.sent += answers["moved"]
            return answers.get("table", TABLE), "", 0
        if "mpirun" in command:
            if answers["sums"]:
                return "sums are right on 3 ranks", "", 0
            return "", "no usable transports", 1
        return answers["device"], "", 0


def checks(collective=40_000, nodes=3, hcas=(), **answers):
    plan = sample_plan(
        nodes=[{"count": nodes}], networks={"experiment": {"rate": "200 Mbit/s", "rdma": {}}}
    )
    allocation = sample_allocation(plan)
    sessions = {node.name: FakeSession(node, **answers) for node in allocation.nodes}
    context = Context(Cluster(SimpleNamespace(), plan, allocation), sessions)
    context.__dict__["facts"] = dict.fromkeys(sessions, SimpleNamespace(hcas=hcas))
    head = sessions["node-0"]
    original = head.run

    def run(command, *args, **options):
        if "mpirun" in command:
            for session in sessions.values():
                session.sent += collective
        return original(command, *args, **options)

    head.run = run
    return list(rdma.rdma(context))


def found(*args, **options):
    return [(c.id, c.node, c.result, c.reason) for c in checks(*args, **options)]


def results(rows):
    return {(id_, result) for id_, _, result, _ in rows}


def test_all_steps_pass_where_counters_agree():
    assert results(found()) == {
        (id_, "pass")
        for id_ in (
            "rdma.device",
            "rdma.rping",
            "rdma.write_bw",
            "rdma.counters",
            "rdma.collective",
        )
    }


def test_right_sums_over_tcp_are_a_failure():
    rows = [row for row in found(collective=7) if row[0] == "rdma.collective"]
    assert {result for _, _, result, _ in rows} == {"fail"}
    assert all("did not go over RDMA" in reason for *_, reason in rows)


@pytest.mark.parametrize(
    ("answers", "failed"),
    [
        ({"device": ""}, "rdma.device"),
        ({"rping": 1}, "rdma.rping"),
        ({"moved": 3}, "rdma.counters"),
        ({"table": TABLE.replace("0.19", "0.01")}, "rdma.write_bw"),
        ({"table": "Failed"}, "rdma.write_bw"),
    ],
)
def test_what_rests_on_a_failure_is_skipped_with_its_name(answers, failed):
    rows = found(**answers)
    assert (failed, "fail") in results(rows)
    skipped = [row for row in rows if row[2] == "skip"]
    assert ("rdma.collective", "skip") in results(skipped)
    assert all(failed in reason for *_, reason in skipped)


def test_nothing_asked_for_is_skipped_with_a_reason():
    context = Context(
        Cluster(SimpleNamespace(), sample_plan(), sample_allocation(sample_plan())), {}
    )
    assert {check.reason for check in rdma.rdma(context)} == {"the cluster asks for no RDMA"}
