"""Declares a backend's component to Pulumi's own mocks, which stand for an engine."""

import asyncio
from contextlib import contextmanager

import pulumi

from gpubed.nodes.allocation import Allocation
from gpubed.spec import clusterspec, plan

UUID = "6f0c0000-0000-4000-8000-000000000000"
KEY = "ssh-ed25519 K"


@contextmanager
def mocked(mocks, monitor=None):
    """Let the mocks answer for all resources that are declared meanwhile."""
    # They run on an event loop, which pytest's main thread has none of.
    asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(mocks, monitor=monitor)
    yield mocks
    asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)


def declare(cluster, data):
    """Declare a cluster from its specification; return its allocation and its plan."""
    planned = plan.plan(clusterspec.model().model_validate(data))
    resolved = []

    @pulumi.runtime.test
    def program():
        uuid, key = pulumi.Output.from_input(UUID), pulumi.Output.from_input(KEY)
        return cluster(planned, uuid, key, None).allocation.apply(resolved.append)

    program()
    return Allocation.model_validate(resolved[0]), planned
