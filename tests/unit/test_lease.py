"""Leases: as granted, not as asked; renewed by the policy; over is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpubed.cluster import lease
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project
from gpubed.nodes.cluster import Cluster
from gpubed.spec.sections import Lease as Wanted
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.samples import sample_allocation, sample_plan

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "now", lambda: NOW)
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


class Stingy:
    """Stands for a backend whose testbed grants less than what is asked for."""

    def __init__(self, most):
        self.until, self._most = NOW + HOUR, most

    def bind(self, *_):
        return self

    def lease(self, _):
        return Lease(self.until)

    def renew(self, _allocation, until):
        self.until = min(until, NOW + self._most)
        return Lease(self.until)


def test_nodes_of_this_machine_do_not_expire(cluster):
    plan = sample_plan()
    record = lease.read(Cluster(cluster, plan, sample_allocation(plan)))
    assert record.state(60) == "unlimited"
    with pytest.raises(UsageError, match="do not expire"):
        lease.renew(Cluster(cluster, plan, sample_allocation(plan)), NOW)
    assert not cluster.lease.exists()


def test_a_shortened_renewal_is_known_as_granted(cluster, monkeypatch):
    plan, testbed = sample_plan(), Stingy(3 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: testbed)
    lease.read(Cluster(cluster, plan, sample_allocation(plan)))
    lease.renew(Cluster(cluster, plan, sample_allocation(plan)), NOW + 24 * HOUR)
    known = lease.last(cluster)
    assert known.document()["remaining_s"] == 3 * 3600
    assert known.requested_until == NOW + 24 * HOUR
    assert known.since == NOW


def test_a_renewal_that_comes_while_the_testbed_is_asked_stays(cluster, monkeypatch):
    """A look that was answered before it would shorten it again, also for nodes that mind it."""
    plan, testbed = sample_plan(), Stingy(24 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: testbed)
    lent = Cluster(cluster, plan, sample_allocation(plan))
    lease.read(lent)
    with monkeypatch.context() as slow:

        def answer(_):
            said = Lease(testbed.until)
            lease.renew(lent, NOW + 12 * HOUR)  # by hand, while the answer is on its way
            return said

        slow.setattr(testbed, "lease", answer)
        assert lease.read(lent).granted_until == NOW + 12 * HOUR
    assert lease.last(cluster).granted_until == NOW + 12 * HOUR
    testbed.until = NOW + 2 * HOUR
    assert lease.read(lent).granted_until == NOW + 2 * HOUR, "the testbed has the last word"


def test_a_lease_that_is_granted_after_the_end_of_another_counts_from_its_own_beginning(
    cluster, monkeypatch
):
    """`up --refresh` brings new nodes, which the former ones' time must not take along."""
    plan, testbed = sample_plan(), Stingy(24 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: testbed)
    lent = Cluster(cluster, plan, sample_allocation(plan))
    lease.read(lent)
    monkeypatch.setattr(lease, "now", lambda: NOW + 24 * HOUR)
    assert lease.read(lent).since == NOW, "it is over, and nothing else is granted"
    testbed.until = NOW + 48 * HOUR
    assert lease.read(lent).since == NOW + 24 * HOUR
    assert lease.last(cluster).since == NOW + 24 * HOUR


def record(left, since=timedelta()):
    return lease.Record(granted_until=NOW + left, since=NOW - since)


def kept(cluster, known):
    cluster.lease.write_text(known.model_dump_json())
    return known


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("known", "until"),
    [
        (record(3 * HOUR), None),  # enough is left
        (record(HOUR), NOW + 24 * HOUR),
        (record(HOUR, since=timedelta(days=6, hours=12)), NOW + 12 * HOUR),  # the policy's most
        (record(HOUR, since=timedelta(days=7)), None),  # no more by the policy
        (record(-HOUR), None),  # too late
        (lease.Record(), None),
    ],
)
def test_the_policy_says_when_and_how_far(known, until):
    assert lease.due(known, Wanted()) == until


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("known", "last"),
    [
        (record(20 * HOUR, since=timedelta(days=5)), None),  # it is two days away
        (record(20 * HOUR, since=timedelta(days=6, hours=1)), NOW + 23 * HOUR),
        (record(20 * HOUR, since=timedelta(days=8)), NOW + 20 * HOUR),  # a person asked for more
        (record(-HOUR, since=timedelta(days=8)), None),
        (lease.Record(), None),
    ],
)
def test_the_policy_has_a_last_end(known, last):
    assert lease.last_end(known, Wanted()) == last


@pytest.mark.parametrize(
    ("wanted", "minutes"),
    [
        ({}, [29, 9, 2]),  # a third and a tenth of the margin
        ({"on_nodes": {}}, [29, 4, 2]),  # jobs are asked at 10, and keep what they did
        ({"on_nodes": {"stop": "25 min"}}, [29, 9, 2]),
    ],
)
def test_and_again_as_it_comes_nearer(cluster, monkeypatch, wanted, minutes):
    end, policy, done = NOW + HOUR, Wanted.model_validate(wanted), []
    known = kept(cluster, lease.Record(granted_until=end, since=NOW))
    for left in range(59, -2, -1):
        moment = end - timedelta(minutes=left, seconds=1)
        monkeypatch.setattr(lease, "now", lambda moment=moment: moment)
        if lease.is_ending(known, policy):
            done.append(left)
            known = lease.ended(cluster, known)
    assert done == minutes


@pytest.mark.parametrize("text", ['{"granted_until": "2020', "[]", '{"own": "perhaps"}'])
def test_what_cannot_be_read_is_no_lease_without_end(cluster, text):
    cluster.lease.write_text(text)
    with pytest.raises(GpubedError, match=r"lease\.json") as caught:
        lease.check_not_expired(cluster)
    assert "gpubed renew lab" in str(caught.value.hint)
    plan = sample_plan(lease={"on_nodes": {}})
    with pytest.raises(GpubedError, match=r"lease\.json"):
        lease.read(Cluster(cluster, plan, sample_allocation(plan)))
    lease.renew(Cluster(cluster, plan, sample_allocation(plan)), NOW + HOUR)
    assert lease.read(Cluster(cluster, plan, sample_allocation(plan))).granted_until == NOW + HOUR


def test_a_lease_that_is_over_is_refused_with_what_to_do(cluster):
    kept(cluster, record(HOUR))
    lease.check_not_expired(cluster)
    kept(cluster, record(-HOUR))
    with pytest.raises(GpubedError, match="--refresh"):
        lease.check_not_expired(cluster)
