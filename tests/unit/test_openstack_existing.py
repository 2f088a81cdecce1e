"""What a project of a cloud has already: found by name or UUID, refused in words.

`tests/live/test_openstack_existing.py` asks a real cloud.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from gpubed.backends.openstack import existing
from gpubed.backends.openstack.config import Attachment, Config
from support.openstack_project import LEASE, RESERVATION, OpenStackProject, uuid


@pytest.fixture
def project() -> Any:
    return OpenStackProject()


def failed(project: Any, *, is_held: bool = False, **backend: Any) -> list[tuple[str, str]]:
    said = {"type": "openstack", "flavor": "f", "access_from": ["0.0.0.0/0"], **backend}
    config = Config.model_validate(said)
    found = existing.findings(project, config, [config.server("node")], is_held=is_held)
    return [(finding.message, str(finding.fix)) for finding in found if not finding.ok]


@pytest.mark.parametrize(
    "backend",
    [
        {"control": {"network": "lab"}, "experiment": {"network": "fabric"}},
        {"control": {"network": uuid(1), "subnet": uuid(11)}, "router": "out"},
        {"control": {"network": "dual", "subnet": "dual-6"}, "floating_ip": False},
        {"control": {"network": "open", "port_security": False}},
        {"floating_ip": "203.0.113.7", "router": uuid(21)},
        {"router": "within", "floating_ip": False},
        {"security_groups": ["monitoring"], "key_pair": "mine", "server_group": "spread"},
        {"reservation": RESERVATION},
    ],
)
def test_what_is_there_is_found(project: Any, backend: dict[str, Any]) -> None:
    assert failed(project, **backend) == []


@pytest.mark.parametrize(
    ("backend", "says", "fix"),
    [
        (
            {"control": {"network": "labs"}},
            "no network 'labs'; did you mean 'lab'?",
            "backend.control.network",
        ),
        (
            {"control": {"network": uuid(99)}},
            "or it belongs to another project",
            "backend.control.network",
        ),
        (
            {"experiment": {"network": uuid(3)}},
            "belongs to another project, which does not share it",
            "backend.experiment.network",
        ),
        ({"control": {"network": "twice"}}, f"2 networks are named 'twice': {uuid(6)}", "an id"),
        ({"control": {"network": "dual"}}, "2 subnets to choose from: dual-a, dual-b", "subnet"),
        (
            {"control": {"network": "dual", "subnet": "lab-v4"}},
            "no subnet 'lab-v4'",
            "backend.control.subnet",
        ),
        ({"control": {"network": "twice", "subnet": "x"}}, "2 networks are", "backend.control"),
        ({"control": {"network": "open"}}, "port security off", "port_security: false"),
        (
            {"experiment": {"network": "dual", "subnet": "dual-6"}},
            "collectives use IPv4",
            "backend.experiment.subnet",
        ),
        ({"router": "in"}, "no router 'in'", "backend.router"),
        ({"router": "within"}, "leads to no external network", "floating_ip: false"),
        (
            {"floating_ip": "203.0.113.8"},
            "203.0.113.8 is in use: it leads to 10.0.0.9",
            "backend.floating_ip",
        ),
        (
            {"floating_ip": "203.0.113.9"},
            "no floating address 203.0.113.9; free ones: 203.0.113.7",
            "backend.floating_ip",
        ),
        ({"security_groups": ["monitor"]}, "did you mean 'monitoring'", "backend.security_groups"),
        ({"key_pair": "yours"}, "no key pair 'yours'", "backend.key_pair"),
        ({"server_group": "close"}, "no server group 'close'", "backend.server_group"),
        ({"reservation": uuid(1)}, "no reservation", "backend.reservation"),
        ({"reservation": LEASE["id"]}, "no reservation", f"with the reservations {RESERVATION}"),
        (
            {"bastions": [{"address": "b.invalid", "user": "me"}]},
            "host key of the bastion b.invalid",
            "ssh -p 22 me@b.invalid",
        ),
    ],
)
def test_what_is_not_there_is_named_with_the_key_to_change(
    project: Any,
    backend: dict[str, Any],
    says: str,
    fix: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(existing, "_KNOWN_HOSTS", str(tmp_path / "known_hosts"))
    ((message, way),) = failed(project, **backend)
    assert says in message
    assert fix in way


def test_an_address_in_use_is_right_where_the_cluster_itself_uses_it(project: Any) -> None:
    assert failed(project, floating_ip="203.0.113.8", is_held=True) == []


def test_nodes_reached_over_ipv6_get_ipv4_where_there_is_one_subnet_of_it(project: Any) -> None:
    wanted = Attachment(network="dual", subnet="dual-6")
    found = existing.segment(project, "control", wanted)
    assert (found.subnets, found.addresses) == ((uuid(14),), ip_network("2001:db8::/64"))
    project.subnets = [subnet for subnet in project.subnets if subnet.name != "dual-b"]
    assert existing.segment(project, "control", wanted).subnets == (uuid(14), uuid(13))


@pytest.mark.parametrize(
    "lease",
    [
        {"start_date": "2098-01-01 00:00", "status": "PENDING"},
        {"end_date": "2026-01-02T00:00:00.000000", "status": "TERMINATED"},
    ],
)
def test_a_reservation_that_holds_nothing_now_is_refused(project: Any, lease: Any) -> None:
    project.leases = [{**LEASE, **lease}]
    ((message, way),) = failed(project, reservation=RESERVATION)
    assert f"its lease gpus is {lease['status']}" in message
    assert "lease update --prolong-for" in way
