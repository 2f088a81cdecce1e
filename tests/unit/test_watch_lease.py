"""`gpubed watch` renews the lease of a cluster, and prepares an end that stays."""

from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

from gpubed.cluster import lease_policy
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Refused
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.watched import HOUR, world

__all__ = ["world"]

REAL = registry.backend("local")


class Lender:
    """STAND-IN for a testbed with an end, and a most that it grants; mute on what is `silent`."""

    def __init__(self, until, most):
        self.until, self.most, self.silent = until, most, ""

    def __getattr__(self, name):
        return getattr(REAL, name)

    def bind(self, *_):
        return self

    def lease(self, *_):
        return self.answer("lease")

    def renew(self, _allocation, until):
        if self.silent != "renew":
            if until > self.most:
                raise Refused("the project has used up its hours")
            self.until = until
        return self.answer("renew")

    def answer(self, question):
        if self.silent == question:
            raise GpubedError("the authority does not answer", "wait for it")
        return Lease(self.until)


@pytest.fixture
def lend(world, monkeypatch):
    """A function that lets a testbed lend the nodes, for so long and for so long at most."""

    def lend(left, most):
        lender = Lender(world.now + left, world.now + most)
        monkeypatch.setattr(registry, "backend", lambda _: lender)
        return lender

    return lend


@pytest.fixture
def prepared(monkeypatch):
    """How often the end was prepared."""
    done = []
    monkeypatch.setattr(lease_policy, "prepare", lambda *_: done.append(1) or ["collected"])
    return done


@pytest.mark.parametrize("verb", [None, "bench"])
def test_a_lease_is_renewed_also_while_a_run_has_the_cluster(world, lend, verb):
    """A campaign holds it for days, and ends with the lease."""
    lender = lend(HOUR, 1000 * HOUR)
    with runlock.hold(world.cluster.state, verb) if verb else nullcontext():
        world.looks(2)
    assert lender.until == datetime(2030, 1, 2, tzinfo=UTC)
    assert world.kinds == ["lease"]
    assert "granted until" in world.events[0].outcome


def test_an_end_that_stays_is_prepared_once(world, lend, prepared):
    lend(HOUR / 4, HOUR / 4)
    for _ in range(3):
        world.looks(1)  # a new process each time, as of cron
    assert prepared == [1]
    assert [event.outcome for event in world.events] == [
        "the project has used up its hours",
        "collected",
    ]
