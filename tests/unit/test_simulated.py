"""What only pretends to be a GPU is never called a pass: in no check, total or exit code."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gpubed import cli
from gpubed.checks import registry, verify
from gpubed.checks.context import Context
from gpubed.cli.commands import run
from gpubed.configuration import health
from gpubed.configuration.health import NodeHealth
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.hardware.facts import Facts
from gpubed.jobs import execution
from gpubed.jobs.job_result import JobResult
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from gpubed.nodes.verification import Check, Verification
from support.samples import sample_allocation, sample_plan

MODEL = "A100-SXM4-80GB"
ABOUT_GPUS = {
    "allreduce.busbw",
    "docker.gpus",
    "gpu.allreduce",
    "gpu.compute",
    "gpu.count",
    "gpu.driver",
    "gpu.ecc",
    "gpu.memory",
    "gpu.pairs",
    "hardware.identified",
    "health.node",
    "rdma.gpudirect",
    "recipe.driver",
    "recipe.gpus",
    "slurm.gpus",
}


# What checks say of themselves to have nothing to do with GPUs.
PLAIN = {id_ for function in registry.functions() for id_ in registry._CHECKS[function][1]}


# What a node says that pretends to have two GPUs, all of them well.
FACTS = {
    "schema": "gpubed/facts/2",
    "host": "node-0",
    "kernel": "6.1.0",
    "cpus": 8,
    "memory_kib": 1,
    "simulated": MODEL,
    "driver": {"loaded": "580.95.05"},
    "gpus": [
        {
            "pci": f"0000:0{index}:00.0",
            "device_id": "20b2",
            "generation": "Ampere",
            "index": index,
            "name": f"NVIDIA {MODEL}",
            "driver": "580.95.05",
        }
        for index in range(2)
    ],
}
PROOF = {
    "asked": 2,
    "simulated": MODEL,
    "gpus": [
        {
            "index": index,
            "name": f"NVIDIA {MODEL}",
            "capability": "8.0",
            "compute": {"value": 0.01, "error": ""},
            "memory": {"value": 0.01, "error": ""},
        }
        for index in range(2)
    ],
}


class PretendingNode:
    """STAND-IN for a session to that node."""

    def run(self, command, *_, **__):
        answers = {"gpubed-facts": json.dumps(FACTS), "gpubed-gpus": json.dumps(PROOF)}
        if "ecc.errors" in command:
            answers[command] = "0, Enabled, 0\n1, Enabled, 0\n"
        if "docker run" in command:
            answers[command] = f"cpu (simulated {MODEL})\n1\n"
        if "sinfo" in command:
            answers[command] = "".join(f"node-{i}|idle|gpu:2|none\n" for i in range(3))
        return CommandResult(answers.get(command, "{}"), "", 0, 0.1)


@pytest.fixture
def context(tmp_path, monkeypatch):
    plan = sample_plan(
        nodes=[{"name": "node", "count": 3, "gpus": 2, "simulate": MODEL}],
        recipe="cuda13",
        services={"slurm": {}, "docker": {}, "jupyterlab": None},
        networks={"experiment": {"rate": "200 Mbit/s", "rdma": {}}},
    )
    allocation = sample_allocation(plan)
    nodes = tuple(node.model_copy(update={"gpus": 2}) for node in allocation.nodes)
    sessions = {node.name: PretendingNode() for node in nodes}
    allocation = allocation.model_copy(update={"nodes": nodes})
    monkeypatch.setattr(health, "look", lambda _, nodes: [NodeHealth(node=n.name) for n in nodes])
    metrics = {"busbw_bps": 1.8e8, "device": f"cpu (simulated {MODEL})", "links": []}
    done = JobResult("allreduce", str(tmp_path), 6, metrics)
    monkeypatch.setattr(execution, "run", lambda *_, **__: done)
    return Context(Cluster(Project(tmp_path).cluster("lab"), plan, allocation), sessions)


def results_of(context):
    """What verify makes of every check; a check that the stand-in cannot answer says nothing."""
    for function in registry.functions():
        try:
            said = list(function(context))
        except (AttributeError, GpubedError, KeyError, ValueError, OSError):
            continue
        yield from (verify._simulated(check, function, context) for check in said)


def test_no_check_of_gpus_passes_on_a_simulated_cluster(context):
    found = list(results_of(context))
    passed = {check.id for check in found if check.result == "pass"}
    simulated = {check.id for check in found if check.result == "simulated"}
    assert not passed - PLAIN
    assert simulated >= ABOUT_GPUS


def test_the_same_answers_of_a_real_node_pass(context, monkeypatch):
    monkeypatch.setitem(FACTS, "simulated", None)
    monkeypatch.setitem(PROOF, "simulated", None)
    passed = {check.id for check in results_of(context) if check.result == "pass"}
    assert {"gpu.count", "gpu.compute", "gpu.memory", "gpu.driver", "recipe.driver"} <= passed


def verification(*results):
    checks = tuple(Check(id="gpu.count", node="node-0", result=result) for result in results)
    return Verification(cluster="lab", at=datetime.now(UTC), node_ids=(), checks=checks)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (("pass", "simulated", "skip"), 0),
        (("pass", "fail", "simulated"), 1),
        (("fail",), 1),
        (("skip", "simulated"), 77),
        (("skip",), 77),
    ],
)
def test_an_exit_code_tells_what_was_proved(results, code):
    assert verification(*results).exit_code == code


def test_a_run_knows_what_its_nodes_pretend(tmp_path):
    plan = sample_plan()
    allocation, cluster = sample_allocation(plan), Project(tmp_path).cluster("lab")
    cluster.facts.mkdir(parents=True)
    facts = Facts.model_validate(FACTS)
    (cluster.facts / "id-node-1.json").write_text(facts.model_dump_json(by_alias=True))
    own = execution._Run(Cluster(cluster, plan, allocation), *[SimpleNamespace()] * 3, tmp_path)
    assert own._simulated() == (MODEL,)
    result = JobResult("own", "", 2, {"simulated": False}, simulated=own._simulated())
    assert result.document()["simulated"] is True


@pytest.mark.process
def test_the_last_lines_of_a_run_say_that_its_gpus_are_simulated(tmp_path, monkeypatch, capsys):
    plan = sample_plan()
    cluster = Cluster(Project(tmp_path).cluster("lab"), plan, sample_allocation(plan))
    monkeypatch.setattr(run, "find", lambda _: cluster.paths)
    monkeypatch.setattr(run, "load_cluster", lambda _: cluster)
    monkeypatch.setattr(run.health, "usable", lambda _: (cluster, []))
    done = JobResult("digits", "/runs/1", 2, {"loss": 0.1}, simulated=(MODEL,))
    monkeypatch.setattr(execution, "run", lambda *_, **__: done)
    assert cli.build("run")(["run", "lab", "digits"], standalone_mode=False) == 0
    simulated, _ = capsys.readouterr().out.splitlines()[-2:]
    assert simulated.startswith(f"simulated: {MODEL} did not compute, the CPU did")
