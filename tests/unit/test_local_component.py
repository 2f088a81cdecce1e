"""The local backend's resources, with Pulumi's own mocks in place of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import MockMonitor

from gpubed.backends.local.component import Cluster
from support.declared import UUID, declare, mocked

DATA = {
    "version": 1,
    "name": "lab",
    "backend": {"type": "local"},
    "nodes": [{"count": 2}, {"name": "big", "count": 1, "gpus": 2}],
    "networks": {"experiment": {"rate": "200 Mbit/s", "mtu": 9000}},
}


class Mocks(pulumi.runtime.Mocks):
    """Answers every resource as its driver would, and remembers the inputs."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.retained: set[str] = set()

    def new_resource(
        self, args: pulumi.runtime.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        inputs = {k: v for k, v in args.inputs.items() if k != "__provider"}
        self.made[f"{inputs.get('kind', 'component')} {args.name}"] = inputs
        result = {
            "id": f"id of {args.name}",
            "tag": "a tag",
            "name": f"docker {args.name}",
            "control_address": inputs.get("control", {}).get("address"),
            "experiment_address": (inputs.get("experiment") or {}).get("address"),
            "host_keys": ["ssh-ed25519 AAAA"],
        }
        return f"{args.name}-id", {**inputs, "result": result}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[Any] | None]:
        return {}, None


class Monitor(MockMonitor):
    """Remembers what is never to be deleted: mocks are not told."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        if request.retainOnDelete:
            self.mocks.retained.add(request.name)
        return super().RegisterResource(request)


@pytest.fixture
def mocks() -> Iterator[Mocks]:
    answers = Mocks()
    with mocked(answers, Monitor(answers)) as mocks:
        yield mocks


def test_no_engine_ever_deletes_the_shared_volume(mocks: Mocks) -> None:
    declare(Cluster, DATA)
    assert mocks.retained == {"shared"}


def test_allocation_has_all_nodes_head_first(mocks: Mocks) -> None:
    allocation, planned = declare(Cluster, DATA)
    assert [node.name for node in allocation.nodes] == ["node-0", "node-1", "big-0"]
    assert allocation.head.id == "id of node-0"
    assert allocation.one_host
    assert allocation.uuid == UUID
    assert allocation.experiment is not None
    assert allocation.experiment.rate_bps == 200_000_000
    assert [n.control_address for n in allocation.nodes] == [
        str(node.control_address) for node in planned.nodes
    ]


def test_every_resource_carries_the_owner_but_the_image(mocks: Mocks) -> None:
    declare(Cluster, DATA)
    owned = {name: i for name, i in mocks.made.items() if name.split()[0] in _OWNED}
    assert set(owned) == {
        *("network control", "network experiment", "volume shared"),
        *("node node-0", "node node-1", "node big-0"),
    }
    assert {(i["cluster"], i["uuid"]) for i in owned.values()} == {("lab", UUID)}
    assert "uuid" not in mocks.made["image debian-12"]


def test_no_two_nodes_share_a_gpu(mocks: Mocks) -> None:
    group = {"name": "big", "count": 2, "gpus": 2}
    declare(Cluster, {**DATA, "nodes": [{"count": 1, "gpus": 1}, group]})
    given = [mocks.made[f"node {name}"]["gpus"] for name in ("node-0", "big-0", "big-1")]
    assert given == [["0"], ["1", "2"], ["3", "4"]]


_OWNED = {"network", "volume", "node"}
