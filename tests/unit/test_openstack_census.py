"""States of servers, in Nova's words and ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.openstack import census
from support.samples import sample_allocation, sample_plan

OURS = {"gpubed.cluster": "u", "gpubed.name": "cloudy"}


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
    found = census.unrefreshable(connection(servers), "cloudy")
    assert found is not None
    assert status in found.message
    assert command in str(found.hint)


def test_only_our_own_servers_are_in_the_way(servers: list[Any]) -> None:
    servers += [server("ACTIVE"), server("SHUTOFF"), server("ERROR"), server("SUSPENDED", {})]
    servers.append(server("SUSPENDED", {**OURS, "gpubed.name": "other"}))
    assert census.unrefreshable(connection(servers), "cloudy") is None
