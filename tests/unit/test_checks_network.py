"""What `gpubed verify` makes of what job allreduce measured; the job is a STAND-IN."""

import json
import math
from types import SimpleNamespace

import pytest

from gpubed.checks import network
from gpubed.checks.context import Context
from gpubed.core import runlock
from gpubed.hardware.facts import HCA, Port
from gpubed.jobs import execution
from gpubed.jobs.job_result import JobResult
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan
from support.specs import sample


def link(measured):
    return {"src": "node-0", "dst": "node-1", "measured_bps": measured}


GOOD = {"busbw_bps": 180e6, "device": "cpu", "links": [link(200e6)]}


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """A function that judges metrics of the job; further arguments are of the cluster."""

    def run(
        metrics,
        failures=(),
        gpus=0,
        experiment=None,
        granted=True,
        hcas=(),
        simulated=None,
        slots=1,
        job=None,
        ranks=3,
        plain=None,
    ):
        wanted = {"rate": "200 Mbit/s", **(experiment or {})}
        plan = sample_plan(networks={} if experiment is False else {"experiment": wanted})
        allocation = sample_allocation(plan)
        head, *others = allocation.nodes
        workers = (node.model_copy(update={"gpus": gpus}) for node in others)
        nodes = (head.model_copy(update={"gpus": gpus * slots, "slots": slots}), *workers)
        allocation = allocation.model_copy(update={"nodes": nodes})
        idle = (node.model_copy(update={"slots": 0}) for node in nodes[ranks:])
        nodes = (*nodes[:ranks], *idle)
        allocation = allocation.model_copy(update={"nodes": nodes})
        measured = [{**link(200e6), "src": "node-1", "dst": "node-0"}]
        alone = [] if all(node.slots for node in nodes) else measured
        monkeypatch.setattr(network.tcp_links, "measured", plain or (lambda *_: alone))
        if granted is False:
            allocation = allocation.model_copy(update={"experiment": None})
        elif granted is not True:
            other = allocation.experiment.model_copy(update={"rate_bps": granted})
            allocation = allocation.model_copy(update={"experiment": other})
        result = JobResult("allreduce", "", 3, {**GOOD, **metrics}, failures=list(failures))
        monkeypatch.setattr(execution, "run", job or (lambda *_, **__: result))
        context = Context(Cluster(SimpleNamespace(state=tmp_path), plan, allocation), {})
        facts = SimpleNamespace(simulated=simulated, hcas=hcas, gpus=())
        context.__dict__["facts"] = {node.name: facts for node in nodes}
        return list(network.links_and_collective(context))

    return run


@pytest.fixture
def verify(checks):
    """As `checks`; returns them by id."""
    return lambda *args, **options: {check.id: check for check in checks(*args, **options)}


def test_links_that_somebody_else_uses_are_not_judged(verify, tmp_path):
    other = {"verb": "run", "pid": 1, "user": "ada", "since": "today"}
    with runlock.measuring(tmp_path, "run", shared=True):
        (tmp_path / runlock.MEASURING).write_text(json.dumps(other))
        found = verify({"links": [link(150e6)]})
        assert {found[id_].result for id_ in network._IDS} == {"skip"}
        assert "`gpubed run` (pid 1, user ada, since today) uses the links" in (
            found["link.rate"].reason
        )
        assert verify({}, granted=100e6)["link.rate"].result == "fail"
    found = verify({"links": [link(150e6)]})
    assert found["link.rate"].result == "fail"


@pytest.mark.parametrize("measured", [-1.0, 1e22, math.nan])
def test_a_rate_that_no_link_has_is_no_measurement(verify, measured):
    check = verify({"links": [link(measured)]})["allreduce.busbw"]
    assert check.result == "fail"
    assert "the metrics of allreduce" in check.reason


@pytest.mark.parametrize(
    ("backend", "rate", "measured", "reason"),
    [
        ("local", 200e6, 200e6, ""),
        ("local", 200e6, 189e6, "slower than"),
        ("local", 200e6, 211e6, "faster than"),
        ("local", 40e9, 33e9, ""),  # more than one stream carries
        ("static", 200e6, 161e6, ""),
        ("static", 200e6, 159e6, "slower than"),
        ("static", 200e6, 900e6, ""),
        ("static", 400e9, 41e9, ""),
    ],
)
def test_a_link_keeps_to_its_bounds(backend, rate, measured, reason):
    check = network.link(sample(backend, "cpu", "all", 0), link(measured), rate)
    assert check.result == ("fail" if reason else "pass")
    assert reason in check.reason


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_packets_have_a_network_to_pass_where_one_is_declared(declared, granted, nodes):
    plan = sample_plan(
        nodes=[{"count": nodes}], networks={"experiment": {"rate": "1 Gbit/s"}} if declared else {}
    )
    allocation = sample_allocation(plan)
    if not granted:
        allocation = allocation.model_copy(update={"experiment": None})
    session = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(exit_code=0))
    sessions = {node.name: session for node in allocation.nodes}
    found = list(network.mtu(Context(Cluster(SimpleNamespace(), plan, allocation), sessions)))
    proved = ["pass"] * nodes if granted else ["fail"]
    skips = not declared or nodes == 1
    assert [check.result for check in found] == (["skip"] if skips else proved)


RDMA = {"gpus": 2, "experiment": {"rdma": {"floor": 0.8}}}


@pytest.mark.parametrize(
    ("metrics", "options", "result"),
    [
        ({}, {}, "pass"),
        ({"busbw_bps": 168e6}, {}, "fail"),  # 0.9 x 0.94 x 200 Mbit/s are 169.2
        ({"busbw_bps": 100e6, "host_limit_bps": 150e6}, {}, "pass"),
        ({"busbw_bps": 100e6, "host_limit_bps": 1e9}, {}, "fail"),
        ({"busbw_bps": 145e6, "host_limit_bps": 1e9}, {}, "pass"),  # 0.9 / (1/188 + 1/1000)
        ({"busbw_bps": 170e6}, {"gpus": 2}, "pass"),
        ({"busbw_bps": 100e6, "host_limit_bps": 150e6}, {"gpus": 2}, "fail"),
        ({"busbw_bps": 159e6}, RDMA, "fail"),
        ({"busbw_bps": 161e6}, RDMA, "pass"),
        ({"busbw_bps": None}, {}, "fail"),
        ({}, {"failures": ["the job ended with exit code 1"]}, "fail"),
    ],
)
def test_the_collective_reaches_its_floor(verify, metrics, options, result):
    assert verify(metrics, **options)["allreduce.busbw"].result == result


def test_a_node_cannot_lower_the_bounds(verify):
    """They come from the specification, whatever the job reports."""
    row = {**link(10e6), "declared_bps": 1.0, "floor_bps": 1.0, "ceiling_bps": None}
    told = {"links": [row], "busbw_bps": 10e6, "floor_bps": 1.0, "limited_by": "cpu"}
    found = verify(told)
    assert (found["link.rate"].result, found["allreduce.busbw"].result) == ("fail", "fail")


@pytest.mark.parametrize("second", [GOOD, {**GOOD, "busbw_bps": 160e6}])
def test_what_is_too_slow_is_measured_twice(verify, second):
    answers = iter([{**GOOD, "busbw_bps": 160e6}, second, None])
    found = verify({}, job=lambda *_, **__: JobResult("allreduce", "", 3, next(answers)))
    assert found["allreduce.busbw"].result == ("pass" if second is GOOD else "fail")
    assert next(answers) is None, "it ran twice"


def test_a_link_is_measured_where_ranks_start_on_one_node_only(checks):
    found = {(check.id, check.node): check for check in checks({}, gpus=0, slots=1, ranks=1)}
    assert found["allreduce.busbw", ""].result == "skip"
    assert found["link.rate", "node-1>node-0"].result == "pass"


ADAPTER = HCA(name="mlx5_0", pci="0000:1b:00.0", ports=(Port(port=1, state="ACTIVE"),))
SOFT = HCA(name="rxe0", ports=(Port(port=1, state="ACTIVE"),))


@pytest.mark.parametrize(
    ("transports", "options", "result", "says"),
    [
        ({"NET/IB/GDRDMA": 8, "P2P/CUMEM": 4}, {}, "pass", ""),
        ({"NET/IB": 8}, {}, "fail", "NCCL used NET/IB: a driver with DMA-BUF"),
        ({"NET/IB/GDRDMA": 8, "NET/Socket": 1}, {}, "fail", "NCCL used NET/Socket"),
        ({}, {}, "fail", "did not log"),
        ({}, {"hcas": (SOFT,)}, "skip", "Soft-RoCE"),
        ({}, {"hcas": (SOFT,), "experiment": {"rdma": {"device": "hardware"}}}, "fail", "log"),
        ({}, {"simulated": "T4"}, "simulated", ""),
        ({}, {"gpus": 0}, "skip", "does not ask"),
        ({}, {"experiment": {}}, "skip", "does not ask"),
    ],
)
def test_gpudirect_is_proved_where_it_was_asked_for(verify, transports, options, result, says):
    given = {"gpus": 2, "experiment": {"rdma": {}}, "hcas": (ADAPTER,), **options}
    check = verify({"transports": transports}, **given)["rdma.gpudirect"]
    assert check.result == result
    assert says in check.reason
