"""What containers and machines cannot do is refused before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from gpubed import spec
from gpubed.backends.local import limits

GIB = 2**30


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(limits, "total_memory", lambda: 8 * GIB)
    monkeypatch.setattr(limits, "gpus", lambda: 0)
    monkeypatch.setattr(limits, "has_gpu_runtime", lambda: False)


def found(**changes: Any) -> list[tuple[str, str]]:
    group = {"count": 2, **changes.pop("group", {})}
    data = {
        "version": 1,
        "name": "lab",
        "backend": {"type": "local", "runtime": changes.pop("runtime", "container")},
        "nodes": [group],
        "networks": {"experiment": {"rate": "200 Mbit/s", **changes}},
    }
    problems = limits.problems(spec.model().model_validate(data))
    assert all(problem.allowed for problem in problems)
    return [(".".join(map(str, problem.path)), problem.message) for problem in problems]


def test_ordinary_cluster_is_accepted() -> None:
    assert found(group={"machine": {"cpus": 4, "memory": "8 GiB"}}) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"latency": "5 ms"}, "networks.experiment.latency"),
        ({"loss": 0.01}, "networks.experiment.loss"),
        ({"rdma": {}}, "networks.experiment.rdma"),
        ({"group": {"image": "plan9"}}, "nodes.0.image"),
        ({"group": {"machine": {"cpus": 5}}}, "nodes.0.machine.cpus"),
        ({"group": {"machine": {"memory": "9 GiB"}}}, "nodes.0.machine.memory"),
        ({"group": {"gpus": 1}}, "nodes.0.gpus"),
    ],
)
def test_refused_with_its_path(changes: dict[str, Any], path: str) -> None:
    assert [where for where, _ in found(**changes)] == [path]


def test_gpus_are_counted_over_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "has_gpu_runtime", lambda: True)
    monkeypatch.setattr(limits, "gpus", lambda: 2)
    assert found(group={"gpus": 1}) == []
    assert [where for where, _ in found(group={"gpus": 2})] == ["nodes.0.gpus"]


def test_machines_delay_and_lose_packets() -> None:
    assert found(runtime="vm", latency="5 ms", loss=0.01) == []


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ({"gpus": 1}, "nodes.0.gpus"),
        ({"machine": {"memory": "256 MiB"}}, "nodes.0.machine.memory"),
        ({"machine": {"cpus": 5}}, "nodes.0.machine.cpus"),
    ],
)
def test_machines_refuse_with_a_path_too(group: dict[str, Any], path: str) -> None:
    assert [where for where, _ in found(runtime="vm", group=group)] == [path]
