"""STAND-IN for a project of a cloud: what it has already, as openstacksdk reads it.

Each thing is a resource of openstacksdk's own, made of what Neutron, Nova and Blazar answer.
"""

import json
from types import SimpleNamespace

from openstack.compute.v2.keypair import Keypair
from openstack.compute.v2.server_group import ServerGroup
from openstack.network.v2.floating_ip import FloatingIP
from openstack.network.v2.network import Network
from openstack.network.v2.router import Router
from openstack.network.v2.security_group import SecurityGroup
from openstack.network.v2.subnet import Subnet

MINE, OTHER = "1" * 32, "2" * 32
RESERVATION = "0d5ea7c1-0000-4000-8000-000000000000"
LEASE = {
    "id": "1ea5e000-0000-4000-8000-000000000000",
    "name": "gpus",
    "status": "ACTIVE",
    "start_date": "2026-01-01T00:00:00.000000",
    "end_date": "2099-01-01T00:00:00.000000",
    "reservations": [{"id": RESERVATION, "resource_type": "physical:host", "status": "active"}],
}


def uuid(number):
    return f"00000000-0000-4000-8000-{number:012d}"


def net(number, name, project=MINE, **more):
    there = {"id": uuid(number), "name": name, "project_id": project, "mtu": 1450, "shared": False}
    return Network.existing(**{**there, "port_security_enabled": True, **more})


def sub(number, name, of, cidr, version=4):
    there = {"id": uuid(number), "name": name, "network_id": uuid(of), "cidr": cidr}
    return Subnet.existing(**there, ip_version=version, project_id=OTHER)


def address(text, project=MINE, **more):
    there = {"id": f"id of {text}", "floating_ip_address": text, "project_id": project}
    return FloatingIP.existing(**there, **more)


class OpenStackProject:
    """Stands where a connection is."""

    current_project_id = MINE

    def has_service(self, _):
        return True

    def __init__(self):
        self.networks = [
            net(1, "lab"),
            net(2, "fabric", OTHER, shared=True, mtu=9000),
            net(3, "theirs", OTHER),
            net(4, "dual"),
            net(5, "open", port_security_enabled=False),
            *(net(number, "twice") for number in (6, 7)),
        ]
        self.subnets = [
            sub(11, "lab-v4", 1, "192.0.2.0/24"),
            sub(12, "fabric-v4", 2, "198.18.0.0/24"),
            sub(13, "dual-a", 4, "192.0.2.0/25"),
            sub(14, "dual-6", 4, "2001:db8::/64", 6),
            sub(15, "dual-b", 4, "192.0.2.128/25"),
            sub(16, "open-6", 5, "2001:db8:1::/64", 6),
        ]
        self.routers = [
            Router.existing(
                id=uuid(21), name="out", project_id=MINE, external_gateway_info={"x": 1}
            ),
            Router.existing(id=uuid(22), name="within", project_id=MINE),
        ]
        self.addresses = [
            address("203.0.113.7"),
            address("203.0.113.8", port_id="p", fixed_ip_address="10.0.0.9"),
            address("203.0.113.9", OTHER),
        ]
        self.groups = [SecurityGroup.existing(id=uuid(31), name="monitoring", project_id=MINE)]
        self.network = SimpleNamespace(
            networks=lambda **_: self.networks,
            subnets=lambda network_id: [s for s in self.subnets if s.network_id == network_id],
            routers=lambda **_: self.routers,
            ips=lambda project_id: [a for a in self.addresses if a.project_id == project_id],
            security_groups=lambda **_: self.groups,
        )
        key = Keypair.existing(name="mine", public_key="ssh-ed25519 MINE me\n")
        group = ServerGroup.existing(id=uuid(41), name="spread", project_id=MINE)
        self.compute = SimpleNamespace(keypairs=lambda: [key], server_groups=lambda: [group])
        self.leases = [LEASE]
        # Blazar, by its API v1.
        answer = lambda _: SimpleNamespace(text=json.dumps({"leases": self.leases}))  # noqa: E731
        client = SimpleNamespace(get=answer)
        self.config = SimpleNamespace(get_session_client=lambda _: client)
