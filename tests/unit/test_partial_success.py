"""Nodes that a cluster may do without: kept as failed, asked for again, left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpubed.backends.component import allocation
from gpubed.core.errors import Refused
from gpubed.nodes.allocation import Allocation
from gpubed.testbeds import resources
from gpubed.testbeds.driver import Driver, NodeFailed
from support.samples import sample_plan

GIVEN = {"id": "1", "control_address": "192.0.2.1", "host_keys": ["ssh-ed25519 A"]}


class Flaky(Driver):
    """A testbed's node driver whose first creations fail."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, []

    def create(self, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        assert "on_failure" not in inputs
        self.calls.append("create")
        if self.calls.count("create") <= self.failures:
            raise NodeFailed("the disk is dead")
        return "id", {"id": "id"}

    def read(self, id: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: A002
        raise AssertionError("a failed node is not there to be read")

    def delete(self, id: str, inputs: Mapping[str, Any]) -> None:  # noqa: A002
        self.calls.append("delete")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def make(failures: int) -> tuple[resources.Provider, Flaky]:
        driver = Flaky(failures)
        monkeypatch.setattr(resources, "_driver", lambda _: driver)
        return resources.Provider(), driver

    return make


def props(on_failure: str | None) -> dict[str, Any]:
    given = {"backend": "local", "kind": "node", "name": "node-1", "result": None}
    return given | ({"on_failure": on_failure} if on_failure else {})


def test_a_needed_node_that_fails_is_an_error(provider: Any) -> None:
    made, driver = provider(1)
    with pytest.raises(NodeFailed, match="disk is dead"):
        made.create(props(None))
    assert driver.calls == ["create"]


def test_a_spare_node_is_asked_for_again_at_once(provider: Any) -> None:
    made, driver = provider(1)
    assert made.create(props("replace")).outs["result"] == {"id": "id"}
    assert driver.calls == ["create", "delete", "create"], "what failed is removed first"


@pytest.mark.parametrize(("policy", "again"), [("replace", ["failed"]), ("leave_out", [])])
def test_what_failed_is_kept_and_treated_as_the_group_says(
    provider: Any, policy: str, again: list[str]
) -> None:
    made, _ = provider(2)
    created = made.create(props(policy))
    assert created.outs["result"] == {"failed": "the disk is dead"}
    assert made.read(created.id, created.outs).outs["result"] == created.outs["result"]
    change = made.diff(created.id, created.outs, props(policy))
    assert (change.replaces, change.changes) == (again, bool(again))


def test_the_others_make_the_cluster() -> None:
    plan = sample_plan(nodes=[{"count": 3, "min": 2}])
    granted = Allocation.model_validate(allocation(plan, "u", [GIVEN, {"failed": "busy"}, GIVEN]))
    assert [node.name for node in granted.nodes] == ["node-0", "node-2"]
    assert [(f.node, f.reason) for f in granted.failed] == [("node-1", "busy")]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([GIVEN, {"failed": "busy"}, {"failed": "broken"}], r"1 of 3 .* at least 2(.|\n)*broken"),
        ([{"failed": "busy"}, GIVEN, GIVEN], "the head"),
    ],
)
def test_too_few_are_refused_with_the_testbeds_reasons(results: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        allocation(sample_plan(nodes=[{"count": 3, "min": 2}]), "u", results)
