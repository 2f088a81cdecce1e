"""`gpubed watch` renews the lease of a cluster, and prepares an end that stays."""

from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest

from gpubed.cluster import before_end, lease, watch_memory
from gpubed.configuration import node_lease
from gpubed.configuration.node_lease import Told
from gpubed.core import files, runlock
from gpubed.core.errors import GpubedError, Refused
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from gpubed.testbeds.specification import load_current
from support.known import mark
from support.watched import HOUR, NAMES, SPEC, world

__all__ = ["world"]

OWN = SPEC.replace("configure: false\n", "lease: {on_nodes: {warning: 30 min, stop: 10 min}}\n")
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
    monkeypatch.setattr(before_end, "prepare", lambda *_: done.append(1) or ["collected"])
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


@pytest.fixture
def full(world, monkeypatch):
    """A function that fills the controller's disk."""

    def full():
        def write(path, *_, **__):
            raise OSError(28, "No space left on device", str(path))

        monkeypatch.setattr(files, "write", write)
        monkeypatch.setattr(watch_memory, "log", lambda *_: write(world.cluster.logs))

    return full


def test_a_lease_is_renewed_though_the_controllers_disk_is_full(world, lend, full, monkeypatch):
    """The testbed would take the nodes back; nodes that mind the end are told, too."""
    said = []

    def tell(_cluster, until, *_):
        said.append(until)
        return Told({"c1": "the end"}, {})

    monkeypatch.setattr(node_lease, "tell", tell)
    lender, one = lend(3 * HOUR, 1000 * HOUR), world.watch()
    known = lease.read(load_current(world.cluster)).model_copy(update={"told": {"c1": "the end"}})
    world.cluster.lease.write_text(known.model_dump_json())
    world.looks(1, of=one)
    full()
    for _ in range(4):
        world.now += HOUR / 2
        with suppress(OSError):
            one.look()
    assert lender.until > datetime(2030, 1, 2, tzinfo=UTC)
    assert said[-1] == lender.until


def test_an_end_that_stays_is_prepared_once(world, lend, prepared):
    lend(HOUR / 4, HOUR / 4)
    for _ in range(3):
        world.looks(1)  # a new process each time, as of cron
    assert prepared == [1]
    assert [event.outcome for event in world.events] == [
        "the project has used up its hours",
        "collected",
    ]


@pytest.mark.parametrize("silent", ["lease", "renew"])
def test_an_end_that_is_known_is_prepared_though_the_testbed_does_not_answer(
    world, lend, prepared, monkeypatch, silent
):
    """The slice authority is down, and the nodes are there."""
    lender, told = lend(3 * HOUR, 1000 * HOUR), []
    monkeypatch.setattr(lease, "tell_nodes", lambda *_, **__: told.append(1))
    world.looks(1)
    lender.silent = silent
    world.looks(90)
    assert prepared == []
    world.looks(80)
    assert (prepared, len(told)) == ([1], 171)
    assert world.kinds == ["unasked", "lease"]
    assert [event.outcome for event in world.events] == ["wait for it", "collected"]
    lender.silent = ""
    world.looks(1)
    assert "granted until" in world.events[-1].outcome


def test_what_a_down_has_begun_to_remove_is_kept_no_longer(world, lend):
    lender = lend(HOUR, 1000 * HOUR)
    mark(world.cluster, removing="")
    world.looks(2)
    assert lender.until == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert [event.outcome for event in world.events] == [
        "a `down` was begun; to have it back: gpubed up lab"
    ]


def test_the_last_end_that_the_policy_asks_for_is_told_a_day_before(world, lend):
    start, lender = world.now, lend(24 * HOUR, 1000 * HOUR)
    world.looks(7 * 24 - 1, every=HOUR)
    [told] = [event for event in world.events if "lease.renewal.most" in event.why]
    assert lender.until - start == 7 * 24 * HOUR
    assert lender.until - told.time >= 23 * HOUR
    assert told.event == "lease"
    assert "at most (lease.renewal.most is 7 d); more: gpubed renew lab" in told.why


def test_nodes_that_do_not_know_of_a_renewal_are_told_again_and_again(world, monkeypatch):
    """They would end what the others go on with; it is said once, and when all know."""
    asked, faults = [], [GpubedError("node-1 does not know"), GpubedError("node-1 does not know")]

    def tell(*_, **__):
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


def test_nodes_of_a_lease_that_is_over_are_not_asked_for_again(world, lend, prepared):
    lend(HOUR, timedelta())
    world.looks(1)
    world.now += 2 * HOUR
    world.states = dict.fromkeys(NAMES, "missing")
    world.looks(3)
    assert world.repairs == []
    assert "gpubed up lab --refresh" in world.events[-1].outcome
