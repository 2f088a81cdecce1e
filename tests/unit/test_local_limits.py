"""What containers and machines cannot do is refused before anything is made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpubed.backends.local import spec_checks
from gpubed.spec import clusterspec

GIB = 2**30
DATA: dict[str, Any] = {"version": 1, "name": "lab", "backend": {"type": "local"}}


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_checks.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(spec_checks, "total_memory", lambda: 8 * GIB)
    monkeypatch.setattr(spec_checks, "gpus", lambda: 0)
    monkeypatch.setattr(spec_checks, "has_gpu_runtime", lambda: False)


def wanted(**changes: Any) -> Any:
    group = {"count": 2, **changes.pop("group", {})}
    data = {
        **DATA,
        "backend": {"type": "local", "runtime": changes.pop("runtime", "container")},
        "recipe": changes.pop("recipe", "cpu"),
        "nodes": [group],
        "networks": {"experiment": {"rate": "200 Mbit/s", **changes}},
    }
    return clusterspec.model().model_validate(data)


def found(**changes: Any) -> list[tuple[str, str]]:
    problems = spec_checks.problems(wanted(**changes))
    assert all(problem.allowed for problem in problems)
    return [(".".join(map(str, problem.path)), problem.message) for problem in problems]


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


@pytest.mark.parametrize(
    ("group", "recipe", "path", "words"),
    [
        ({"simulate": "A100-SXM-80GB"}, "cuda13", "simulate", "no GPU model 'A100-SXM-80GB'"),
        ({"gpus": 9}, "cuda13", "gpus", "asks for 9 GPUs, .* no room"),
        ({"simulate": {"model": "T4", "gpus": 12}}, "cuda13", "simulate", "asks for 12 GPUs"),
        ({"simulate": "V100-SXM2-16GB"}, "cuda13", "simulate", "recipe cuda12 has"),
        ({"simulate": "B200-SXM6-180GB"}, "cuda12", "simulate", "recipe cuda13 has"),
        ({"simulate": "K80"}, "cuda12", "simulate", "no recipe has"),
    ],
)
def test_what_no_node_can_pretend_is_refused(
    group: dict[str, Any], recipe: str, path: str, words: str
) -> None:
    asked = {"gpus": 2, "simulate": "A100-SXM4-80GB", **group}
    [(where, message)] = found(group=asked, recipe=recipe)
    assert where == f"nodes.0.{path}"
    assert re.search(words, message)


def test_generations_without_a_common_driver_are_refused() -> None:
    old, new = ({"count": 1, "gpus": 1, "simulate": m} for m in ("K80", "B200-SXM6-180GB"))
    groups = [{"name": "old", **old}, {"name": "new", **new}]
    data = {**DATA, "recipe": "cuda13", "nodes": groups}
    problems = spec_checks.problems(clusterspec.model().model_validate(data))
    found = {problem.path: problem.message for problem in problems}
    assert "no recipe has" in found["nodes", 0, "simulate"]
    assert "the last branch for old-0 (Kepler) is 470" in found["nodes", 1, "simulate"]
