"""The local backend's resources, with Pulumi's own mocks in place of an engine."""

from __future__ import annotations

from typing import Any, ClassVar

import pulumi
from pulumi.runtime.mocks import MockMonitor

from gpubed.backends.local.component import Cluster
from support.declared import declare, mocked

DATA = {"version": 1, "name": "lab", "backend": {"type": "local"}, "nodes": [{"count": 2}]}


class Mocks(pulumi.runtime.Mocks):
    """Answers every resource as its driver would."""

    def new_resource(
        self, args: pulumi.runtime.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        control = args.inputs.get("control", {}).get("address")
        result = {"id": "i", "name": "n", "control_address": control, "host_keys": ["k AAAA"]}
        return f"{args.name}-id", {**args.inputs, "result": result}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[Any] | None]:
        return {}, None


class Monitor(MockMonitor):
    """Remembers what is never to be deleted: mocks are not told."""

    retained: ClassVar[set[str]] = set()

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        if request.retainOnDelete:
            self.retained.add(request.name)
        return super().RegisterResource(request)


def test_no_engine_ever_deletes_the_shared_volume() -> None:
    monitor = Monitor(Mocks())
    with mocked(monitor.mocks, monitor):
        declare(Cluster, DATA)
    assert monitor.retained == {"shared"}
