"""`gpubed watch` renews the lease of a cluster, and prepares an end that stays."""

from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

from gpubed.cluster import before_end, lease
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Refused
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.watched import HOUR, NAMES, world

__all__ = ["world"]

REAL = registry.backend("local")


class Lender:
    """STAND-IN for a testbed with an end, and a most that it grants."""

    def __init__(self, until, most):
        self.until, self.most = until, most

    def __getattr__(self, name):
        return getattr(REAL, name)

    def bind(self, *_):
        return self

    def lease(self, *_):
        return Lease(self.until)

    def renew(self, _allocation, until):
        if until > self.most:
            raise Refused("the project has used up its hours")
        self.until = until
        return Lease(until)


@pytest.mark.parametrize("verb", [None, "bench"])
def test_a_lease_is_renewed_also_while_a_run_has_the_cluster(world, monkeypatch, verb):
    """A campaign holds it for days, and ends with the lease."""
    lender = Lender(world.now + HOUR, world.now + 1000 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    with runlock.hold(world.cluster.state, verb) if verb else nullcontext():
        world.looks(2)
    assert lender.until == datetime(2030, 1, 2, tzinfo=UTC)
    assert world.kinds == ["lease"]
    assert "granted until" in world.events[0].outcome


def test_an_end_that_stays_is_prepared_once(world, monkeypatch):
    prepared = []
    monkeypatch.setattr(before_end, "prepare", lambda *_: prepared.append(1) or ["collected"])
    lender = Lender(world.now + HOUR / 4, world.now + HOUR / 4)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    for _ in range(3):
        world.looks(1)  # a new process each time, as of cron
    assert prepared == [1]
    assert [event.outcome for event in world.events] == [
        "the project has used up its hours",
        "collected",
    ]


def test_what_is_made_in_the_last_half_hour_is_collected_too(world, monkeypatch):
    left = []

    def prepare(cluster):
        left.append(lease.last(cluster.paths).remaining_s // 60)
        return ["collected"]

    monkeypatch.setattr(before_end, "prepare", prepare)
    lender = Lender(world.now + HOUR, world.now + HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    world.looks(60)
    assert left == [29, 9, 2]


def test_nodes_that_do_not_know_of_a_renewal_are_told_again_and_again(world, monkeypatch):
    """They would end what the others go on with; it is said once, and when all know."""
    asked, faults = [], [GpubedError("node-1 does not know"), GpubedError("node-1 does not know")]

    def tell(*_):
        asked.append(1)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(lease, "tell_nodes", tell)
    world.looks(4)
    assert len(asked) == 4
    assert [(event.event, event.why, event.outcome) for event in world.events] == [
        ("lease", "nodes that mind it", "node-1 does not know"),
        ("well", "all nodes know until when the lease lasts", ""),
    ]


def test_nodes_of_a_lease_that_is_over_are_not_asked_for_again(world, monkeypatch):
    lender = Lender(world.now + HOUR, world.now)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    monkeypatch.setattr(before_end, "prepare", lambda *_: [])
    world.looks(1)
    world.now += 2 * HOUR
    world.states = dict.fromkeys(NAMES, "missing")
    world.looks(3)
    assert world.repairs == []
    assert "gpubed up lab --refresh" in world.events[-1].outcome
