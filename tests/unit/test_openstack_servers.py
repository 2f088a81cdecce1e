"""Servers of a cluster in Nova's words and ours; openstacksdk's answers are hand-made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.core import record
from gpubed.core.errors import Refused
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.bound import kind
from support.cluster import Cluster
from support.openstack_project import RESERVATION, OpenStackProject
from support.samples import sample_allocation, sample_plan
from support.specs import BACKENDS

UUID = "aaaaaaaa-0000-4000-8000-000000000000"
OURS = {"gpubed.cluster": UUID, "gpubed.name": "cloudy"}
# Of two people who share a project, each may have a cluster of this name.
OTHERS = ({}, {**OURS, "gpubed.name": "other"}, {**OURS, "gpubed.cluster": UUID.replace("a", "b")})


class Nova:
    """STAND-IN for Nova as openstacksdk shows it: a server reboots for two looks."""

    def __init__(self, *servers: Any) -> None:
        self.found, self.done, self.looks = list(servers), list[tuple[str, str]](), 0

    def servers(self, details: bool, status: str = "") -> list[Any]:
        return [server for server in self.found if status in (server.status, "")]

    def get_server(self, id_: str) -> Any:
        (server,) = (server for server in self.found if server.id == id_)
        rebooting = self.done and self.looks < 2
        return SimpleNamespace(**{**vars(server), **({"status": "REBOOT"} if rebooting else {})})

    def reboot_server(self, rebooted: Any, how: str) -> None:
        self.done.append((rebooted.id, how))

    def wait_for_server(self, waited: Any, wait: float) -> None:
        while waited.status != "ACTIVE":
            self.looks += 1
            waited = self.get_server(waited.id)


def server(status: str, metadata: Any = OURS, id_: str = "i", launched: str | None = None) -> Any:
    reason = {"message": "No valid host was found."}
    name = "gpubed-cloudy-aaaaaaaa-node-1"
    return SimpleNamespace(
        id=id_,
        name=name,
        status=status,
        metadata=metadata,
        description=None,
        fault=reason,
        launched_at=launched,
    )


@pytest.fixture
def cloudy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def cloudy(*servers: Any, uuid: str | None = UUID) -> Any:
        paths = Project(tmp_path).cluster("cloudy")
        if uuid:
            record.keep_uuid(paths, uuid)
        nova = Nova(*servers)
        monkeypatch.setattr(kind("openstack"), "_connection", SimpleNamespace(compute=nova))
        testbed: Any = registry.bound("openstack", paths)
        testbed.nova = nova
        return testbed

    return cloudy


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("ACTIVE", "ready"),
        ("SHUTOFF", "stopped"),
        ("SHELVED_OFFLOADED", "stopped"),
        ("PAUSED", "paused"),
        ("VERIFY_RESIZE", "verify_resize"),
    ],
)
def test_a_state_is_called_what_it_is(cloudy: Any, status: str, word: str) -> None:
    allocation = sample_allocation(sample_plan())
    first, *others = allocation.nodes
    found = cloudy(server(status, id_=first.id)).describe(allocation)
    assert found == {first.name: word, **{node.name: "missing" for node in others}}


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ("VERIFY_RESIZE", "openstack server resize confirm i"),
        ("SUSPENDED", "openstack server resume i"),
        ("RESCUE", "openstack server unrescue i"),
        ("UNKNOWN", "openstack server show i"),
        ("REBOOT", "openstack server reboot --hard i"),
    ],
)
def test_what_the_plugin_cannot_read_is_named_with_the_way_back(
    cloudy: Any, status: str, command: str
) -> None:
    found = cloudy(server("ACTIVE"), server(status)).unrefreshable()
    assert status in found.message
    assert command in found.hint


def test_only_our_own_servers_count(cloudy: Any) -> None:
    cloud = cloudy(*(server("SUSPENDED", metadata) for metadata in OTHERS), server("SHUTOFF"))
    assert cloud.unrefreshable() is None
    failed = [server("ERROR", metadata, id_=f"{n}") for n, metadata in enumerate((*OTHERS, OURS))]
    ran = server("ERROR", id_="ran", launched="2026-01-01T00:00:00")
    (found,) = cloudy(*failed, ran).faults()
    assert (found.node, found.reason) == ("node-1", "No valid host was found.")
    assert (found.thing.id, found.thing.uuid) == ("3", UUID)


def test_a_server_that_hangs_is_rebooted_hard_and_waited_for(cloudy: Any) -> None:
    allocation = sample_allocation(sample_plan())
    id_ = allocation.nodes[1].id
    ours = {"gpubed.cluster": allocation.uuid, "gpubed.name": allocation.cluster}
    cloud = cloudy(server("ACTIVE", ours, id_))
    cloud.restart(allocation, allocation.nodes[1])
    assert cloud.nova.done == [(id_, "HARD")]
    assert cloud.nova.looks == 2, "it was ACTIVE before, which counts for nothing"


@pytest.mark.parametrize("metadata", [{}, OURS, {"gpubed.cluster": "u", "gpubed.name": "lab"}])
def test_a_server_of_somebody_else_is_never_rebooted(cloudy: Any, metadata: Any) -> None:
    allocation = sample_allocation(sample_plan())
    cloud = cloudy(server("ACTIVE", metadata, allocation.nodes[1].id))
    with pytest.raises(Refused, match="does not bear the mark of lab"):
        cloud.restart(allocation, allocation.nodes[1])
    assert cloud.nova.done == []


class TestReservation:
    """A host reservation of Blazar is the lease of a cluster."""

    @pytest.fixture
    def reserved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        backend = {**BACKENDS["openstack"], "reservation": RESERVATION}
        made = Cluster(tmp_path, "cloudy", backend=backend, nodes=[{"count": 1}], networks={})
        monkeypatch.setattr(kind("openstack"), "_connection", OpenStackProject())
        return registry.bound("openstack", Project(made.root).cluster("cloudy"))

    def test_its_end_is_the_end_of_the_lease(self, reserved: Any) -> None:
        allocation = sample_allocation(sample_plan())
        assert reserved.lease(allocation).granted_until == datetime(2099, 1, 1, tzinfo=UTC)

    def test_its_owner_renews_it(self, reserved: Any) -> None:
        with pytest.raises(Refused, match="a reservation of yours") as refused:
            reserved.renew(sample_allocation(sample_plan()), datetime.now(UTC))
        assert "--prolong-for" in str(refused.value.hint)


def test_a_volume_that_is_to_stay_is_one_that_down_leaves(cloudy: Any) -> None:
    there = {"id": "v", "name": "data", "size": 1, "created_at": None}
    testbed = cloudy()
    for marks, stays in (({}, False), ({"gpubed.keep": "true"}, True)):
        volume = SimpleNamespace(**there, metadata={**OURS, **marks})
        assert testbed._thing("volume", volume, UUID).stays is stays
