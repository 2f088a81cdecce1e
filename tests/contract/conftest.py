"""A cluster on each backend, made by its real component and drivers.

Pulumi's mocks stand for the engine: they hand every resource that the component
declares to the backend's driver, so nothing here knows a backend's inputs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from gpubed.core import secret
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.allocation import Allocation
from gpubed.resources import Provider
from gpubed.spec import clusterspec, plan
from gpubed.testbeds import registry, resources
from gpubed.testbeds.base import Existing, Testbed
from support.wall_site import driver, server, wall

__all__ = ["driver", "server", "wall"]

# What stands for each testbed: a module with `SPEC`, and where it has any `options`, what serves it
# and fills its `backend` in, and `MARKS`, the marks of the tests that need it.
TESTBEDS = {
    path.stem: import_module(f"contract.testbeds.{path.stem}")
    for path in sorted(Path(__file__).with_name("testbeds").glob("*.py"))
}
# One node that pretends to have GPUs; test_simulated.py asks for these by name. Called otherwise
# than those that stand for testbeds: tests of both run beside each other, and look by name.
SIMULATED: dict[str, dict[str, Any]] = {
    f"simulated-{runtime}": {
        "version": 1,
        "name": "pretended",
        "backend": {"type": "local", "runtime": runtime},
        "nodes": [
            {
                "name": "gpu",
                "count": 1,
                "gpus": 2,
                "simulate": "A100-SXM4-80GB",
                "machine": {"cpus": 2, "memory": "1 GiB"},
            }
        ],
        "networks": {"control": {"subnet": subnet}},
        "recipe": "cuda13",
        "configure": False,
    }
    for runtime, subnet in (("container", "10.127.221.0/24"), ("vm", "10.127.222.0/24"))
}


@dataclass
class Made:
    """A resource as its driver made it."""

    kind: str
    name: str
    inputs: dict[str, Any]
    id: str = ""
    result: dict[str, Any] = field(default_factory=dict)


@dataclass
class Cluster:
    """A cluster that was made by calling the drivers."""

    testbed: Testbed
    plan: plan.ClusterPlan
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    made: list[Made] = field(default_factory=list)
    allocation: Allocation = field(init=False)

    @property
    def paths(self) -> ClusterPaths:
        return self.testbed.paths

    def up(self) -> None:
        """Declare the component; every resource is created as it is declared."""
        key = secret.ensure_key(self.paths.private_key)
        resolved: list[dict[str, Any]] = []

        @pulumi.runtime.test
        def program() -> pulumi.Output[None]:
            inputs = map(pulumi.Output.from_input, (self.uuid, key))
            return self.testbed.backend.component(self.plan, *inputs, None).apply(resolved.append)

        pulumi.runtime.set_mocks(_Engine(self))
        program()
        self.allocation = Allocation.model_validate(resolved[0])

    def create(self, made: Made) -> None:
        """Call the provider, as an engine would at the first time or after a crash."""
        resources._owners.cache_clear()  # each call is a run of its own
        created = Provider().create(made.inputs)
        made.id, made.result = created.id, created.outs["result"]

    def read(self, made: Made) -> dict[str, Any] | None:
        """Ask the driver what there is."""
        return self.testbed.driver(made.kind).read(made.id, made.inputs)

    def delete(self, made: Made) -> None:
        """Call the provider."""
        Provider().delete(made.id, {**made.inputs, "result": made.result})

    def down(self) -> None:
        """Delete everything that was made, last made first."""
        for made in reversed(self.made):
            if made.id:
                self.delete(made)
        # No driver removes data; `gpubed down` does it like this.
        for thing in self.existing():
            if thing.data:
                self.testbed.remove(thing)

    def existing(self) -> list[Existing]:
        """Return what the testbed has of it."""
        return [thing for thing in self.testbed.existing() if thing.uuid == self.uuid]

    def node(self, name: str) -> Made:
        """Return a node's resource."""
        return next(m for m in self.made if (m.kind, m.name) == ("node", name))

    @property
    def owned(self) -> list[Made]:
        """What exists by itself and is the cluster's; the nodes of a slice go with the slice."""
        owned = [made for made in self.made if "uuid" in made.inputs]
        return [made for made in owned if made.kind == "slice"] or owned

    def holder(self, name: str) -> Made:
        """Return what a node stands and falls with."""
        node = self.node(name)
        return node if node in self.owned else self.owned[0]


class _Engine(pulumi.runtime.Mocks):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def new_resource(
        self, args: pulumi.runtime.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        if "kind" not in args.inputs:  # the component itself
            return None, {}
        inputs = {k: v for k, v in args.inputs.items() if k != "__provider"}
        made = Made(inputs["kind"], args.name, inputs)
        self._cluster.made.append(made)
        self._cluster.create(made)
        return made.id, {**inputs, "result": made.result}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[Any] | None]:
        raise NotImplementedError(args.token)


@contextmanager
def made_cluster(data: dict[str, Any], project: Project) -> Iterator[Cluster]:
    """Make a cluster from its specification; it is gone afterwards."""
    wanted = clusterspec.model().model_validate(data)
    paths = project.cluster(wanted.name)
    testbed = registry.bound(clusterspec.spec_backend(wanted), paths)
    refused = [found for found in testbed.doctor(wanted) if not found.ok]
    if refused:
        stop = pytest.fail if shutil.which("docker") else pytest.skip
        stop(f"{wanted.name}: {refused[0].message}")
    paths.spec.parent.mkdir(parents=True, exist_ok=True)
    paths.spec.write_text(yaml.safe_dump(data))
    made = Cluster(testbed, plan.plan(wanted))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.docker, *getattr(testbed, "MARKS", [])])
        for name, testbed in TESTBEDS.items()
    ],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A cluster of two nodes, or one that pretends; gone afterwards."""
    if request.param.endswith("vm") and os.environ.get("GPUBED_VM") != "1":
        pytest.skip("virtual machines take minutes where KVM does not work: set GPUBED_VM=1")
    project = Project(tmp_path_factory.mktemp("project"))
    testbed = TESTBEDS.get(request.param)
    data = testbed.SPEC if testbed else SIMULATED[request.param]
    asyncio.set_event_loop(asyncio.new_event_loop())
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("GPUBED_CACHE", str(project.root / "cache"))
        patch.setenv("GPUBED_ROOT", str(project.root))
        if options := getattr(testbed, "options", None):
            served = stack.enter_context(options(project))
            data = {**data, "backend": data["backend"] | served}
        yield stack.enter_context(made_cluster(data, project))
        stack.close()
    asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)
