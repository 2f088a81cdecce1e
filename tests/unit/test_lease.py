"""Leases: as granted, not as asked; renewed by the policy; over is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpubed.cluster import lease
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster
from gpubed.spec.sections import Lease as Wanted
from support.samples import sample_allocation, sample_plan

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "now", lambda: NOW)
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


def test_nodes_of_this_machine_do_not_expire(cluster):
    plan = sample_plan()
    record = lease.read(Cluster(cluster, plan, sample_allocation(plan)))
    assert record.state(60) == "unlimited"
    with pytest.raises(UsageError, match="do not expire"):
        lease.renew(Cluster(cluster, plan, sample_allocation(plan)), NOW)
    assert not cluster.lease.exists()


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
