"""A cluster on what a project of a real OpenStack has already, which `down` leaves as it was.

The tests use one project with a network, a router, groups and a key of its owner, in this order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpubed.core import secret
from live.conftest import ACCESS_FROM, NEEDED, Live, Login, everything
from support import hypervisor
from support.cluster import Cluster, unique

pytestmark = NEEDED
# What a cloud itself writes whenever something joins or leaves.
_ITS_OWN = ("location", "revision_number", "updated_at", "members", "member_ids", "status")


@dataclass
class Lab:
    """What the owner of a project has made."""

    connection: Any
    name: str
    made: dict[str, Any]

    def there(self) -> dict[str, Any]:
        """Return all of it as it is now."""
        network, compute = self.connection.network, self.connection.compute
        ways = {
            **{kind: getattr(network, f"get_{kind}") for kind in ("network", "subnet", "router")},
            "security_group": network.get_security_group,
            "ip": network.get_ip,
            "server_group": compute.get_server_group,
            "keypair": compute.get_keypair,
        }
        found = {key: ways[key.split()[0]](thing.id) for key, thing in self.made.items()}
        return {
            key: {k: v for k, v in thing.to_dict().items() if k not in _ITS_OWN}
            for key, thing in found.items()
        }


@pytest.fixture(scope="module")
def lab(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    connection = login.connection
    network, compute, name = connection.network, connection.compute, f"lab-{uuid.uuid4().hex[:6]}"
    external = next(iter(network.networks(is_router_external=True)))
    key = secret.ensure_key(tmp_path_factory.mktemp("mine") / "id")
    made: dict[str, Any] = {"network control": network.create_network(name=name)}
    made["network fabric"] = network.create_network(name=f"{name}-fabric")
    for purpose, cidr, way in (
        ("control", "10.77.33.0/24", {}),
        ("fabric", "10.77.34.0/24", {"gateway_ip": None}),
    ):
        of = {"network_id": made[f"network {purpose}"].id, "ip_version": 4, "cidr": cidr}
        made[f"subnet {purpose}"] = network.create_subnet(name=f"{name}-{purpose}", **of, **way)
    out = {"external_gateway_info": {"network_id": external.id}}
    made["router"] = network.create_router(name=name, **out)
    made["ip"] = network.create_ip(floating_network_id=external.id)
    made["security_group"] = network.create_security_group(name=name)
    made["server_group"] = compute.create_server_group(name=name, policies=["soft-anti-affinity"])
    made["keypair"] = compute.create_keypair(name=name, public_key=key)
    try:
        yield Lab(connection, name, made)
    finally:
        compute.delete_keypair(name)
        compute.delete_server_group(made["server_group"].id)
        network.delete_security_group(made["security_group"].id)
        network.delete_ip(made["ip"].id)
        network.delete_router(made["router"].id)
        for purpose in ("control", "fabric"):
            network.delete_network(made[f"network {purpose}"].id)


@pytest.fixture
def cluster(lab: Lab, login: Login, tmp_path: Path) -> Iterator[Live]:
    """A cluster that the tests complete; nothing of it is there yet."""
    flavor = min(lab.connection.compute.flavors(), key=lambda f: (f.vcpus, f.ram))
    image = next(iter(lab.connection.image.images(name="debian-12")))
    common = {"cloud": "live", "flavor": flavor.id, "images": {"debian-12": image.id}}
    backend = {"type": "openstack", **common, "access_from": [ACCESS_FROM], "shaping": "none"}
    name = unique("live")
    made = Cluster(
        tmp_path / "project",
        name,
        backend=backend,
        nodes=[{"count": 2}],
        networks={},
        configure=False,
    )
    found = Live(lab.connection, made, everything(lab.connection), flavor.name, login)
    try:
        yield found
    finally:
        made.call("down", "-y", "--engine", "cli", rc=None)


def test_everything_of_the_owners_is_used_and_left_as_it_was(
    lab: Lab, cluster: Live, tmp_path: Path
) -> None:
    own, before = tmp_path / "own.sh", lab.there()
    own.write_text("#!/bin/sh\ntouch /mine\n")
    cluster.cluster.edit(
        lambda spec: spec["backend"].update(
            control={"network": lab.name, "port_security": True},
            experiment={"network": lab.made["network fabric"].id, "subnet": f"{lab.name}-fabric"},
            floating_ip=False,
            config_drive=True,
            security_groups=[lab.name],
            key_pair=lab.name,
            server_group=lab.name,
            user_data=str(own),
            tags=["lab"],
            metadata={"owner": "me"},
        )
    )
    cluster.cluster.edit(lambda spec: spec.update(networks={"experiment": {"rate": "1 Gbit/s"}}))
    nodes = cluster.up()
    there = {kind: len(names) for kind, names in cluster.there().items() if names}
    assert there == {"server": 2, "port": 4, "security group": 2}
    assert cluster.cluster.node("node-1", "hostname").split() == ["node-1"]
    server = lab.connection.compute.get_server(nodes["node-1"])
    assert (server.key_name, str(server.has_config_drive)) == (lab.name, "True")
    assert server.metadata["owner"] == "me"
    assert (
        server.id in lab.connection.compute.get_server_group(lab.made["server_group"].id).member_ids
    )
    (control,) = lab.connection.network.ports(
        device_id=server.id, network_id=lab.made["network control"].id
    )
    assert lab.made["security_group"].id in control.security_group_ids
    assert cluster.plan() == set()
    assert cluster.cluster.json("audit")["unrecorded"] == []
    cluster.scale(3)
    assert {name: id_ for name, id_ in cluster.up().items() if name in nodes} == nodes
    assert cluster.cluster.json("down", "-y", "--engine", "cli")["survivors"] == []
    assert not any(cluster.there().values())
    assert lab.there() == before


def test_a_router_and_a_floating_address_of_the_owners_are_given_back(
    lab: Lab, cluster: Live
) -> None:
    before, address = lab.there(), lab.made["ip"].floating_ip_address
    cluster.cluster.edit(lambda spec: spec["backend"].update(router=lab.name, floating_ip=address))
    cluster.up()
    there = {kind: len(names) for kind, names in cluster.there().items() if names}
    assert there == {
        "server": 2,
        "port": 3,
        "network": 1,
        "subnet": 1,
        "security group": 2,
        "key pair": 1,
        "server group": 1,
    }
    assert lab.connection.network.get_ip(lab.made["ip"].id).port_id
    assert cluster.cluster.node("node-1", "hostname").split() == ["node-1"]
    assert cluster.plan() == set()
    assert cluster.cluster.json("down", "-y", "--engine", "cli")["survivors"] == []
    assert not any(cluster.there().values())
    after = lab.there()
    assert after["ip"]["port_id"] is None
    assert after == before


def test_a_lost_state_leaves_the_owners_router_in_peace(lab: Lab, cluster: Live) -> None:
    before = lab.there()
    cluster.cluster.edit(
        lambda spec: spec["backend"].update(
            router=lab.name, floating_ip=lab.made["ip"].floating_ip_address
        )
    )
    cluster.up()
    uuid_ = cluster.cluster.json("audit")["uuid"]
    (cluster.cluster.root / ".gpubed").rename(cluster.cluster.root / "lost")
    cluster.cluster.call("audit", "--remove", "--uuid", uuid_, "--data", "-y")
    assert not any(cluster.there().values())
    assert lab.there() == before


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"control": {"network": "{name}s"}}, "did you mean '{name}'"),
        ({"control": {"network": "{theirs}"}}, "belongs to another project"),
        ({"floating_ip": "{used}"}, "is in use"),
        ({"security_groups": ["{name}x"]}, "did you mean '{name}'"),
        ({"boot_volume": "2 GiB", "data_volumes": ["1 GiB"]}, "no block storage service"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_made(
    lab: Lab, cluster: Live, owner: Any, backend: dict[str, Any], words: str
) -> None:
    if "boot_volume" in backend and lab.connection.has_service("block-storage"):
        pytest.skip("this cloud has volumes")
    values, network = {"name": lab.name}, lab.connection.network
    undo = []
    if "theirs" in str(backend):
        if not hypervisor.is_needed(owner):
            pytest.skip("only an administrator makes networks for another project")
        project = owner.identity.create_project(name=lab.name, domain_id="default")
        theirs = owner.network.create_network(name=f"{lab.name}-theirs", project_id=project.id)
        undo += [lambda: owner.network.delete_network(theirs)]
        undo += [lambda: owner.identity.delete_project(project)]
        values["theirs"] = theirs.id
    if "used" in str(backend):
        port = network.create_port(network_id=lab.made["network control"].id)
        network.add_interface_to_router(lab.made["router"].id, lab.made["subnet control"].id)
        network.update_ip(lab.made["ip"].id, port_id=port.id)
        undo += [lambda: network.delete_port(port.id)]
        subnet = lab.made["subnet control"].id
        undo += [lambda: network.remove_interface_from_router(lab.made["router"].id, subnet)]
        values["used"] = lab.made["ip"].floating_ip_address
    given = {key: _filled(value, values) for key, value in backend.items()}
    common = {"control": {"network": lab.name}, "floating_ip": False}
    cluster.cluster.edit(lambda spec: spec["backend"].update({**common, **given}))
    try:
        said = cluster.cluster.call("plan", "--engine", "cli", rc=None)
        assert _filled(words, values) in said.stdout + said.stderr
        refused = cluster.cluster.call("up", "--engine", "cli", rc=3).stderr
        assert _filled(words, values) in refused
    finally:
        for step in undo:
            step()


def _filled(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format_map(values) if "{" in value else value
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return {key: _filled(each, values) for key, each in value.items()}
