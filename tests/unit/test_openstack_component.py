"""The OpenStack backend's resources, with Pulumi's own mocks in place of engine and cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_string
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pulumi
import pytest
import yaml
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.mocks import MockMonitor

from gpubed.backends.openstack import cloud as connections
from gpubed.backends.openstack import cloud_init, component, labels
from gpubed.core import secret
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.declared import UUID, declare, mocked
from support.known import mark
from support.openstack_project import RESERVATION, OpenStackProject, uuid

SECRET = "1b47061264138c4ac30d75fd1eb44270"  # how Pulumi marks a secret on the wire
DATA: dict[str, Any] = {
    "version": 1,
    "name": "cloudy",
    "backend": {
        "type": "openstack",
        "cloud": "mycloud",
        "external_network": "public",
        "flavor": "m1.tiny",
        "access_from": ["198.51.100.0/24"],
    },
    "nodes": [{"count": 2}, {"name": "big", "count": 1}],
    "networks": {"experiment": {"rate": "200 Mbit/s", "mtu": 1400}},
}


def document(**backend: Any) -> dict[str, Any]:
    return {**DATA, "backend": {**DATA["backend"], **backend}}


@dataclass
class Declared:
    """A resource as the program registered it."""

    type: str
    name: str
    inputs: dict[str, Any]
    depends_on: list[str]
    retained: bool

    @property
    def kind(self) -> str:
        return self.type.rsplit(":", 1)[-1]


@dataclass
class Cloud(pulumi.runtime.Mocks):
    """Answers as the plugin and the drivers would, with an id for everything."""

    project: Path
    made: list[Declared] = field(default_factory=list)
    ports: int = 0  # those whose addresses the cloud chooses

    def new_resource(
        self, args: pulumi.runtime.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        inputs = dict(args.inputs)
        if inputs.get("kind") == "hostkey":
            cluster = Project(self.project).cluster(inputs["cluster"])
            public = secret.ensure_key(cloud_init.key_path(cluster, inputs["name"]))
            inputs["result"] = {"public": public}
        elif "kind" in inputs:
            inputs["result"] = {"id": f"the cloud's {inputs.get('name')}"}
        if args.typ.endswith(":Network") and args.typ.startswith("openstack:"):
            inputs.setdefault("mtu", 1442)
        if args.typ.endswith(":Port") and "ipAddress" not in str(inputs["fixedIps"]):
            self.ports += 1
            of = ("2001:db8::", "192.0.2.", "198.18.0.")
            inputs["allFixedIps"] = [f"{each}{self.ports}" for each in of]
        if args.typ.endswith(":FloatingIp"):
            inputs["address"] = "203.0.113.7"
        return f"id of {args.typ.rsplit(':', 1)[-1]} {args.name}", inputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[Any] | None]:
        raise NotImplementedError(args.token)

    def all(self, kind: str) -> dict[str, Declared]:
        return {made.name: made for made in self.made if made.kind == kind}

    def one(self, kind: str) -> Declared:
        (found,) = self.all(kind).values()
        return found

    @property
    def provider(self) -> Declared:
        (found,) = (m for m in self.made if m.type.startswith("pulumi:providers:"))
        return found

    @property
    def native(self) -> list[Declared]:
        return [made for made in self.made if made.type.startswith("openstack:")]


class Monitor(MockMonitor):
    """Remembers requests whole: mocks are not told of dependencies."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        answer = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.mocks.made.append(
                Declared(
                    request.type,
                    request.name,
                    MessageToDict(request.object),
                    [_kind_and_name(urn) for urn in request.dependencies],
                    request.retainOnDelete,
                )
            )
        return answer


def write_clouds(path: Path, **more: Any) -> None:
    auth = {"auth_url": "https://192.0.2.1:5000/v3", "username": "u", "password": "p"}
    domains = {"user_domain_name": "Default", "project_domain_name": "Default"}
    auth |= {"project_name": "mine", **domains}
    entry = {"auth": {**auth, "project_name": "p"}, "regions": ["one", "north"], **more}
    path.write_text(yaml.safe_dump({"clouds": {"mycloud": entry, "other": entry}}))


def _kind_and_name(urn: str) -> str:
    *_, types, name = urn.split("::")
    return f"{types.rsplit(':', 1)[-1]} {name}"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("OS_")]:
        monkeypatch.delenv(name)
    write_clouds(tmp_path / "clouds.yaml")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    connections.connect.cache_clear()
    cloud = Cloud(tmp_path)
    with mocked(cloud, Monitor(cloud)):
        yield cloud


class TestAllocation:
    def test_nodes_have_planned_addresses_and_a_way_in_through_the_head(self, cloud: Cloud) -> None:
        allocation, planned = declare(component.Cluster, DATA)
        assert [node.name for node in allocation.nodes] == ["node-0", "node-1", "big-0"]
        assert cloud.one("FloatingIp").inputs["portId"] == "id of Port node-0-control"
        assert len({key for node in allocation.nodes for key in node.host_keys}) == 3
        for node, wanted in zip(allocation.nodes, planned.nodes, strict=True):
            assert node.id == f"id of Instance {node.name}"
            assert node.control_address == str(wanted.control_address)
            assert node.experiment_address == str(wanted.experiment_address)
            (hop,) = node.via
            assert (hop.address, hop.user, hop.identity) == ("203.0.113.7", "gpubed", None)
            assert hop.host_keys == allocation.head.host_keys
            text = cloud.all("Instance")[node.name].inputs["userData"]["value"]
            assert yaml.safe_load(text)["ssh_keys"]["ed25519_public"] == node.host_keys[0]

    def test_a_node_that_failed_is_not_declared_and_named(self, cloud: Cloud) -> None:
        paths = Project(cloud.project).cluster("cloudy")
        mark(paths, left_out={"node-1": "No valid host was found."})
        allocation, _ = declare(
            component.Cluster, {**DATA, "nodes": [{"count": 3, "min": 2}, *DATA["nodes"][1:]]}
        )
        assert [node.name for node in allocation.nodes] == ["node-0", "node-2", "big-0"]
        assert [failure.node for failure in allocation.failed] == ["node-1"]
        assert set(cloud.all("Instance")) == {"node-0", "node-2", "big-0"}
        assert not [name for name in cloud.all("Port") if name.startswith("node-1")]


def test_nothing_is_let_in_but_what_the_specification_says(cloud: Cloud) -> None:
    opening = {"port": 8888, "source": "192.0.2.0/24"}
    declare(component.Cluster, {**DATA, "firewall": {"open": [opening, {"port": 443}]}})
    rules = {name: rule.inputs for name, rule in cloud.all("SecGroupRule").items()}
    within = rules.pop("nodes-within")
    assert within["remoteGroupId"] == within["securityGroupId"] == "id of SecGroup nodes"
    keys = ("securityGroupId", "portRangeMin", "portRangeMax", "remoteIpPrefix")
    assert {tuple(rule[key] for key in keys) for rule in rules.values()} == {
        ("id of SecGroup door", 22, 22, "198.51.100.0/24"),
        ("id of SecGroup door", 8888, 8888, "192.0.2.0/24"),
        ("id of SecGroup door", 443, 443, "0.0.0.0/0"),  # an opening without a source
    }
    groups = {name: port.inputs["securityGroupIds"] for name, port in cloud.all("Port").items()}
    assert [name for name, ids in groups.items() if "id of SecGroup door" in ids] == [
        "node-0-control"
    ]
    assert all("id of SecGroup nodes" in ids for ids in groups.values())


def test_everything_carries_the_uuid_and_is_found_again(cloud: Cloud) -> None:
    declare(component.Cluster, document(data_volumes=["10 GiB"]))
    bare = {"RouterInterface", "QosBandwidthLimitRule", "VolumeAttach"}  # parts of what has it
    kinds = {made.kind for made in cloud.native}
    assert {*bare, "Instance", "Network", "Volume", "ServerGroup", "Keypair"} <= kinds
    for made in cloud.native:
        inputs = {"tags": [], "description": "", **made.inputs}
        if made.kind in ("Keypair", "ServerGroup"):
            assert labels.uuid_of_name(inputs["name"], "cloudy") == UUID
            assert labels.uuid_of_name(inputs["name"], "cloud") is None
        elif made.kind not in bare:
            assert labels.uuid_of(SimpleNamespace(**inputs), "cloudy") == UUID, made.name
            assert labels.uuid_of(SimpleNamespace(**inputs), "other") is None
            assert all(len(tag) <= 60 for tag in inputs["tags"])


class TestOrder:
    def test_the_cloud_is_looked_at_before_anything_is_made(self, cloud: Cloud) -> None:
        declare(component.Cluster, DATA)
        for made in (*cloud.native, *cloud.all("HostKey").values()):
            assert "Capacity capacity" in made.depends_on, f"{made.kind} {made.name}"


class TestServers:
    def test_data_volumes_are_attached_in_their_order_and_outlive_their_node(
        self, cloud: Cloud
    ) -> None:
        """A server names its disks in the order in which they are attached."""
        declare(component.Cluster, document(groups={"big": {"data_volumes": ["100 GB", "1 GiB"]}}))
        sizes = {name: volume.inputs["size"] for name, volume in cloud.all("Volume").items()}
        assert sizes == {"big-0-data-0": 94, "big-0-data-1": 1}  # never less than asked for
        attached = cloud.all("VolumeAttach")
        assert {made.inputs["instanceId"] for made in attached.values()} == {"id of Instance big-0"}
        assert "VolumeAttach big-0-data-0" in attached["big-0-data-1"].depends_on
        assert "VolumeAttach" not in str(attached["big-0-data-0"].depends_on)
        assert all(v.inputs["enableOnlineResize"] for v in cloud.all("Volume").values())
        assert {m.kind for m in cloud.made if m.retained} == {"Volume"}
        assert all(volume.retained for volume in cloud.all("Volume").values())


class TestNetworks:
    def test_the_clouds_own_servers_take_no_address_of_a_node(self, cloud: Cloud) -> None:
        _, planned = declare(
            component.Cluster, {**DATA, "nodes": [{"count": 9}, {"name": "b", "count": 5}]}
        )
        subnets = {name: subnet.inputs for name, subnet in cloud.all("Subnet").items()}
        for purpose in ("control", "experiment"):
            (pool,) = subnets[purpose]["allocationPools"]
            first, last = IPv4Address(pool["start"]), IPv4Address(pool["end"])
            taken = [getattr(node, f"{purpose}_address") for node in planned.nodes]
            assert first in IPv4Network(subnets[purpose]["cidr"])
            assert not [address for address in taken if first <= address <= last]


class TestSecrets:
    def test_no_private_key_is_in_any_plain_input(self, cloud: Cloud) -> None:
        declare(component.Cluster, DATA)
        for server in cloud.all("Instance").values():
            assert SECRET in str(server.inputs["userData"]), "it is not marked"
        for made in cloud.made:
            plain = {k: v for k, v in made.inputs.items() if SECRET not in str(v)}
            assert "PRIVATE KEY" not in str(plain), f"{made.kind} {made.name}"

    def test_the_provider_gets_no_credentials(
        self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        auth = {"AUTH_URL": "https://192.0.2.1/v3", "USERNAME": "u", "PASSWORD": "hunter2"}
        for name, value in auth.items():
            monkeypatch.setenv(f"OS_{name}", value)
        for name in ("PROJECT_NAME", "USER_DOMAIN_NAME", "PROJECT_DOMAIN_NAME"):
            monkeypatch.setenv(f"OS_{name}", "Default")
        backend = {key: value for key, value in DATA["backend"].items() if key != "cloud"}
        declare(component.Cluster, {**DATA, "backend": backend})
        assert cloud.provider.inputs == {}


class TestOneCloud:
    """The plugin works where openstacksdk looks: in the same project, region and endpoints."""

    def test_what_an_entry_leads_to_is_said_in_full(self, cloud: Cloud) -> None:
        declare(component.Cluster, DATA)
        assert cloud.provider.inputs == {"cloud": "mycloud", "region": "one"}
        assert cloud.provider.name == "openstack-mycloud", "another name would replace everything"

    def test_variables_of_another_project_are_refused(
        self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OS_PROJECT_ID", "another")
        with pytest.raises(PrerequisiteMissing, match="OS_PROJECT_ID"):
            declare(component.Cluster, DATA)
        assert cloud.native == []


class TestExisting:
    """What the project has already is used, and what is made beside it is the cluster's own."""

    LAB: ClassVar[dict[str, Any]] = {"control": {"network": "lab"}, "floating_ip": False}

    @pytest.fixture(autouse=True)
    def project(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Any:
        project: Any = OpenStackProject()
        project.config = connections.connect("mycloud", None).config
        monkeypatch.setattr(component.Cluster, "connection", project)
        return project

    def declared(self, networks: Any = None, **backend: Any) -> Any:
        data = document(**backend)
        return declare(component.Cluster, {**data, "networks": networks or {}})[0]

    def test_nodes_on_existing_networks_have_the_addresses_that_the_cloud_chose(
        self, cloud: Cloud
    ) -> None:
        fabric = {"network": "fabric", "vnic_type": "direct", "port_security": False}
        granted = self.declared({"experiment": {"rate": "1 Gbit/s"}}, **self.LAB, experiment=fabric)
        made = {made.kind for made in cloud.native}
        assert made.isdisjoint({"Network", "Subnet", "Router", "RouterInterface", "FloatingIp"})
        ports = {name: port.inputs for name, port in cloud.all("Port").items()}
        assert ports["node-0-control"]["networkId"] == uuid(1)
        assert ports["node-0-control"]["fixedIps"] == [{"subnetId": uuid(11)}]
        assert ports["node-0-experiment"]["networkId"] == uuid(2)
        assert ports["node-0-experiment"]["binding"] == {"vnicType": "direct"}
        assert ports["node-0-experiment"]["portSecurityEnabled"] is False
        assert "securityGroupIds" not in ports["node-0-experiment"]
        assert {node.control_address[:8] for node in granted.nodes} == {"192.0.2."}
        assert len({node.control_address for node in granted.nodes}) == 3
        assert (granted.control.subnet, granted.experiment.mtu) == ("192.0.2.0/24", 9000)
        assert granted.experiment.subnet == "198.18.0.0/24"

    def test_what_is_not_there_ends_the_program_in_words(self) -> None:
        def component_of(*given: Any) -> Any:
            return SimpleNamespace(allocation=registry.backend("openstack").component(*given))

        data = document(control={"network": "labb"}, floating_ip=False)
        with pytest.raises(GpubedError, match="did you mean 'lab'"):
            declare(component_of, {**data, "networks": {}})

    def test_without_a_floating_address_the_head_is_the_way_in_at_its_own(self) -> None:
        granted = self.declared(**self.LAB)
        ways = {tuple(hop.address for hop in node.via) for node in granted.nodes}
        assert ways == {(granted.head.control_address,)}
        assert granted.head.is_last_hop

    def test_a_chosen_floating_address_is_joined_to_the_head_and_not_made(
        self, cloud: Cloud
    ) -> None:
        granted = self.declared(control={"network": "lab"}, floating_ip="203.0.113.7")
        assert cloud.all("FloatingIp") == {}
        joined = cloud.one("FloatingIpAssociate").inputs
        assert joined == {"floatingIp": "203.0.113.7", "portId": "id of Port node-0-control"}
        assert granted.nodes[1].via[0].address == "203.0.113.7"

    def test_nodes_are_reached_over_ipv6(self, cloud: Cloud) -> None:
        dual = {"control": {"network": "dual", "subnet": "dual-6"}, "floating_ip": False}
        granted = self.declared(**dual, access_from=["2001:db8:9::/48", "198.51.100.0/24"])
        assert {node.control_address[:10] for node in granted.nodes} == {"2001:db8::"}
        rules = [rule.inputs for rule in cloud.all("SecGroupRule").values()]
        assert {(r["ethertype"], r.get("remoteIpPrefix")) for r in rules} == {
            *(("IPv4", None), ("IPv6", None)),
            *(("IPv4", "198.51.100.0/24"), ("IPv6", "2001:db8:9::/48")),
        }

    def test_bastions_come_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        known = tmp_path / "known_hosts"
        key = secret.ensure_key(tmp_path / "host")
        known.write_text(f"[gate.example]:2222 {key}\n")
        monkeypatch.setattr(component.existing, "_KNOWN_HOSTS", str(known))
        gate = {"address": "gate.example", "port": 2222, "user": "me", "key": "/k"}
        granted = self.declared(**self.LAB, bastions=[gate])
        first, head = granted.nodes[1].via
        assert (first.address, first.port, first.user, first.identity) == (
            *("gate.example", 2222, "me", "/k"),
        )
        assert head.address == granted.head.control_address

    def test_a_new_network_joins_an_existing_router(self, cloud: Cloud) -> None:
        self.declared(router="out", floating_ip=False)
        assert cloud.all("Router") == {}
        assert cloud.one("RouterInterface").inputs["routerId"] == uuid(21)
        assert cloud.one("Subnet").name == "control"

    def test_servers_get_what_is_there_beside_the_clusters_own(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        own = tmp_path / "own.yml"
        own.write_text("#cloud-config\npackages: [htop]\n")
        common = {
            "user_data": str(own),
            "config_drive": True,
            "tags": ["t"],
            "metadata": {"a": "b"},
        }
        there = {"security_groups": ["monitoring"], "key_pair": "mine", "server_group": "spread"}
        self.declared(**self.LAB, **common, **there, reservation=RESERVATION)
        assert {made.kind for made in cloud.native}.isdisjoint({"Keypair", "ServerGroup"})
        server = cloud.all("Instance")["node-1"].inputs
        assert (server["keyPair"], server["configDrive"], server["tags"]) == ("mine", True, ["t"])
        assert server["metadata"]["a"] == "b"
        assert server["metadata"]["gpubed.name"] == "cloudy"
        assert server["schedulerHints"] == [
            {"group": uuid(41), "additionalProperties": {"reservation": RESERVATION}}
        ]
        groups = cloud.all("Port")["node-1-control"].inputs["securityGroupIds"]
        assert groups == ["id of SecGroup nodes", uuid(31)]
        whole = message_from_string(server["userData"]["value"])
        ours, theirs = (part.get_payload(decode=True) for part in whole.get_payload())
        (user,) = yaml.safe_load(ours)["users"]
        assert user["ssh_authorized_keys"][1] == "ssh-ed25519 MINE me"
        assert theirs == own.read_bytes()

    def test_a_volume_that_is_to_stay_says_so_to_down(self, cloud: Cloud) -> None:
        volumes = ["1 GiB", {"size": "2 GiB", "delete": False}]
        self.declared(**self.LAB, data_volumes=volumes)
        marked = {
            name: "gpubed.keep" in made.inputs["metadata"]
            for name, made in cloud.all("Volume").items()
            if name.startswith("node-0")
        }
        assert marked == {"node-0-data-0": False, "node-0-data-1": True}
