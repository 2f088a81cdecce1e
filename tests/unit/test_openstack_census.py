"""States of servers, in Nova's words and ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.openstack import census
from gpubed.core import record
from gpubed.core.errors import Refused
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.bound import kind
from support.samples import sample_allocation, sample_plan

OURS = {"gpubed.cluster": "u", "gpubed.name": "cloudy"}
# Of two people who share a project, each may have a cluster of this name.
THEIRS = {**OURS, "gpubed.cluster": "v"}
UUID = "aaaaaaaa-0000-4000-8000-000000000000"


@pytest.fixture
def servers() -> list[Any]:
    return []


def connection(servers: list[Any]) -> Any:
    return SimpleNamespace(compute=SimpleNamespace(servers=lambda **_: servers))


def server(status: str, metadata: Any = OURS, id_: str = "i") -> Any:
    return SimpleNamespace(id=id_, name="node-0", status=status, metadata=metadata)


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("ACTIVE", "ready"),
        ("SHUTOFF", "stopped"),
        ("SHELVED_OFFLOADED", "stopped"),
        ("PAUSED", "paused"),
        ("SUSPENDED", "suspended"),
        ("VERIFY_RESIZE", "verify_resize"),
        ("ERROR", "error"),
    ],
)
def test_a_state_is_called_what_it_is(servers: list[Any], status: str, word: str) -> None:
    allocation = sample_allocation(sample_plan())
    first, *others = allocation.nodes
    servers.append(server(status, id_=first.id))
    found = census.describe(connection(servers), allocation)
    assert found[first.name] == word
    assert {found[node.name] for node in others} == {"missing"}


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
    servers: list[Any], status: str, command: str
) -> None:
    servers.append(server(status))
    found = census.unrefreshable(connection(servers), "cloudy", "u")
    assert found is not None
    assert status in found.message
    assert command in str(found.hint)


def test_only_our_own_servers_are_in_the_way(servers: list[Any]) -> None:
    servers += [server("ACTIVE"), server("SHUTOFF"), server("ERROR"), server("SUSPENDED", {})]
    servers.append(server("SUSPENDED", {**OURS, "gpubed.name": "other"}))
    servers.append(server("SUSPENDED", THEIRS))
    assert census.unrefreshable(connection(servers), "cloudy", "u") is None
    assert census.unrefreshable(connection(servers), "cloudy", None) is None


def failing(*servers: Any) -> Any:
    """A STAND-IN for Nova's servers in the state ERROR."""
    found = {each.id: each for each in servers}
    return SimpleNamespace(
        compute=SimpleNamespace(servers=lambda **_: [*servers], get_server=found.__getitem__)
    )


def failed(metadata: Any, uuid: str, launched_at: str | None = None) -> Any:
    name = f"gpubed-cloudy-{uuid}-node-1"
    reason = {"message": "No valid host was found."}
    return SimpleNamespace(
        id=uuid, name=name, metadata=metadata, fault=reason, launched_at=launched_at
    )


def test_only_our_own_servers_have_failed_us() -> None:
    nova = failing(failed(THEIRS, "v"), failed(OURS, "u"), failed({}, "w"))
    (found,) = census.faults(nova, "cloudy", "u")
    assert (found.node, found.reason) == ("node-1", "No valid host was found.")
    assert (found.thing.id, found.thing.uuid) == ("u", "u")


def test_a_server_that_has_run_is_no_failed_one() -> None:
    assert census.faults(failing(failed(OURS, "u", "2026-01-01T00:00:00")), "cloudy", "u") == []


def test_who_has_made_nothing_yet_has_nothing_that_failed() -> None:
    assert census.faults(failing(failed(THEIRS, "v")), "cloudy", None) == []


class Nova:
    """A STAND-IN for Nova as openstacksdk shows it: a server reboots for two looks."""

    def __init__(self, metadata: Any) -> None:
        self.metadata, self.done, self.looks = metadata, list[tuple[str, str]](), 0

    def get_server(self, id_: str) -> Any:
        status = "HARD_REBOOT" if self.done and self.looks < 2 else "ACTIVE"
        return server(status, self.metadata, id_)

    def reboot_server(self, rebooted: Any, how: str) -> None:
        self.done.append((rebooted.id, how))

    def wait_for_server(self, waited: Any, wait: float) -> None:
        while waited.status != "ACTIVE":
            self.looks += 1
            waited = self.get_server(waited.id)


def test_a_server_that_hangs_is_rebooted_hard_and_waited_for() -> None:
    allocation = sample_allocation(sample_plan())
    node = allocation.nodes[1]
    nova = Nova({"gpubed.cluster": allocation.uuid, "gpubed.name": allocation.cluster})
    connected: Any = SimpleNamespace(compute=nova)
    census.restart(connected, allocation, node)
    assert nova.done == [(node.id, "HARD")]
    assert nova.looks == 2, "it was ACTIVE before, which counts for nothing"


def test_the_kept_uuid_says_which_servers_are_ours(tmp_path: Path, monkeypatch: Any) -> None:
    uuids = (UUID, UUID.replace("a", "b"))
    servers = [failed({**OURS, "gpubed.cluster": uuid}, uuid) for uuid in uuids]
    monkeypatch.setattr(kind("openstack"), "_connection", failing(*servers))
    cluster = Project(tmp_path).cluster("cloudy")
    testbed = registry.bound("openstack", cluster)
    assert testbed.faults() == []
    record.keep_uuid(cluster, UUID)
    assert [fault.thing.id for fault in testbed.faults()] == [UUID]
    for server in servers:
        server.status = "SUSPENDED"
    assert f"resume {UUID};" in str(testbed.unrefreshable())


@pytest.mark.parametrize("metadata", [{}, OURS, {"gpubed.cluster": "u", "gpubed.name": "lab"}])
def test_a_server_of_somebody_else_is_never_rebooted(metadata: Any) -> None:
    allocation, nova = sample_allocation(sample_plan()), Nova(metadata)
    connected: Any = SimpleNamespace(compute=nova)
    with pytest.raises(Refused, match="does not bear the mark of lab"):
        census.restart(connected, allocation, allocation.nodes[1])
    assert nova.done == []
