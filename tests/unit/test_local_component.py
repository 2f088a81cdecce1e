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


def test_every_resource_carries_the_owner_but_the_image(mocks: Mocks) -> None:
    declare(Cluster, DATA)
    owned = {name: i for name, i in mocks.made.items() if name.split()[0] in _OWNED}
    assert set(owned) == {
        *("network control", "network experiment", "volume shared"),
        *("node node-0", "node node-1", "node big-0"),
    }
    assert {(i["cluster"], i["uuid"]) for i in owned.values()} == {("lab", UUID)}
    assert "uuid" not in mocks.made["image debian-12"]


_OWNED = {"network", "volume", "node"}
