"""The OpenStack backend's resources as Pulumi sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pulumi
from openstack.connection import Connection
from pulumi_openstack import Provider, blockstorage, compute, networking

from gpubed.backends.component import Component
from gpubed.backends.openstack import capacity, cloud, cloud_init, existing, labels
from gpubed.backends.openstack.config import ID, Attachment, Config, gib
from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.spec.plan import ClusterPlan, NetworkPlan, NodePlan
from gpubed.testbeds import uncreated_nodes
from gpubed.testbeds.resources import Capacity, HostKey, Image, Network

_BACKEND = "openstack"
# Addresses of the subnet for the cloud's DHCP servers; nodes start at the tenth.
_POOL = (2, 9)
# Ironic tests a machine and writes the image to its disk before it is ACTIVE.
_TIMES = pulumi.CustomTimeouts(create="90m")
_POLICIES = {"soft": "soft-anti-affinity", "hard": "anti-affinity"}


class Cluster(Component):
    """Networks, security groups, servers and the floating address of one cluster."""

    def __init__(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> None:
        super().__init__(_BACKEND, plan.cluster, opts)
        self._plan, self.config, self._uuid = plan, Config.of(plan.spec.backend), uuid
        self._public_key = public_key
        self._find = cache(partial(existing.find, self.connection))  # once for all nodes
        # Not an argument: projects have copies of the program, which passes only a plan.
        self._cluster = Project.find().cluster(plan.cluster)
        self._tags = uuid.apply(lambda known: labels.tags(plan.cluster, known))
        needs = capacity.Needs.of(plan).model_dump(mode="json")
        self._capacity = Capacity("capacity", _BACKEND, needs, self.children)
        self._provider = self._provider_of()
        where, after = self.config.where, self._after_the_look
        self._images = {
            name: Image(
                name, _BACKEND, {**where, "name": self.config.images.get(name, name)}, after
            )
            for name in {node.image for node in plan.nodes}
        }
        self._control = _Segment(self, "control", plan.control, gateway=True)
        self._groups = self._security_groups()
        # Empty on an existing network, which has its own.
        self.routers = () if self._control.found else (self._interface(),)
        self._experiment = (
            _Segment(self, "experiment", plan.experiment, gateway=False)
            if plan.experiment
            else None
        )
        self._qos = self._rate(plan.experiment) if plan.experiment else None
        whole_name = uuid.apply(lambda known: f"gpubed-{plan.cluster}-{known}")
        servers = [self.config.server(group.name) for group in plan.spec.nodes]
        self._keypair: compute.Keypair | None = None
        self._affinity: compute.ServerGroup | None = None
        if not all(server.key_pair for server in servers):
            self._keypair = compute.Keypair(
                "keypair", name=whole_name, public_key=public_key, opts=self.native()
            )
        policy = _POLICIES.get(self.config.anti_affinity)
        if policy and not all(server.server_group for server in servers):
            self._affinity = compute.ServerGroup(
                "nodes", name=whole_name, policies=policy, opts=self.native()
            )
        failed = uncreated_nodes.read(self._cluster, plan)
        nodes = {node.name: self._node(node) for node in plan.nodes if node.name not in failed}
        head, via = nodes[plan.nodes[0].name], existing.way(self.config.bastions)
        door = self._door(head)
        results = [
            {"failed": failed[node.name]}
            if node.name in failed
            else _granted(nodes[node.name], door, head, via)
            for node in plan.nodes
        ]
        granted = {"control": self._control.granted(plan.control)}
        if self._experiment and plan.experiment:
            granted["experiment"] = self._experiment.granted(plan.experiment)
        self.grant(
            plan.model_copy(update=granted),
            uuid,
            results,
            mtu=self._experiment.mtu if self._experiment else None,
        )

    def _door(self, head: _Made) -> pulumi.Output[str]:
        """Return the address of the head from outside."""
        wanted, port_id = self.config.floating_ip, head.port.id
        if wanted is False:
            return head.addresses[0]
        options = self.native(*self.routers)
        if wanted is not True:
            associated = networking.FloatingIpAssociate(
                "door", floating_ip=str(wanted), port_id=port_id, opts=options
            )
            return associated.floating_ip
        # A floating address blocks the removal of its router: as an input depends on the router, a
        # new router replaces the address first.
        pool = pulumi.Output.all(*(router.id for router in self.routers)).apply(
            lambda _: str(self.config.external_network)
        )
        made = networking.FloatingIp("door", pool=pool, port_id=port_id, **self.owner, opts=options)
        return made.address

    def native(self, *after: pulumi.Resource, **more: Any) -> pulumi.ResourceOptions:
        """Return the options of the cloud's resources, which depend on the capacity check.

        A replacement reuses addresses and names, so the old resource is deleted first.
        """
        return pulumi.ResourceOptions(
            parent=self,
            provider=self._provider,
            depends_on=[self._capacity, *after],
            **{"delete_before_replace": True, **more},
        )

    @cached_property
    def connection(self) -> Connection:
        """The cloud, to look up existing resources."""
        return cloud.connect(self.config.cloud, self.config.region)

    @property
    def _after_the_look(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._capacity])

    def name(self, thing: str) -> pulumi.Output[str]:
        """Return the name of one of the cluster's resources in the cloud."""
        return self._uuid.apply(lambda known: labels.name(self._plan.cluster, known, thing))

    def make(
        self, kind: Any, name: str, *after: pulumi.Resource, in_use: bool = False, **inputs: Any
    ) -> Any:
        """Declare a resource with tags; one that is `in_use` is deleted after its replacement."""
        options = self.native(*after, delete_before_replace=not in_use)
        return kind(name, name=self.name(name), **self.owner, **inputs, opts=options)

    @property
    def owner(self) -> dict[str, pulumi.Output[Any]]:
        """Tags, and a description, since the plugin sets tags only in a second call."""
        return {"tags": self._tags, "description": self._tags.apply(" ".join)}

    def _metadata(self, /, **more: str) -> pulumi.Output[dict[str, str]]:
        cluster = self._plan.cluster
        return self._uuid.apply(lambda known: {**labels.metadata(cluster, known), **more})

    def _provider_of(self) -> Provider:
        cloud_name, region = self.config.cloud, self.config.region
        connection = self.connection
        if strays := cloud.strays(connection):
            raise PrerequisiteMissing(
                f"OpenStack: {connection.config.name} of clouds.yaml is used, and Pulumi's plugin "
                f"would mix it with {', '.join(strays)}",
                'eval "$(gpubed env CLUSTER)" in this shell unsets them',
            )
        # The name contains the cloud: another cloud is another provider, whose resources replace
        # the old ones. The plugin gets openstacksdk's settings, since it looks for them elsewhere.
        return Provider(
            "-".join(part for part in (_BACKEND, cloud_name, region) if part),
            cloud=cloud.entry(connection),
            region=connection.config.region_name or None,
            endpoint_type=cloud.interface(connection),
            opts=self.children,
        )

    def _security_groups(self) -> dict[str, networking.SecGroup]:
        names, make = ("nodes", "door"), self.make
        made = {name: make(networking.SecGroup, name, in_use=True) for name in names}
        nodes, door = (made[name].id for name in names)
        self._let_in("nodes-within", nodes, remote_group_id=nodes)
        control = self._control.found
        if control and control.addresses.version == 6:
            self._let_in("nodes-within-6", nodes, ethertype="IPv6", remote_group_id=nodes)
        for name, (protocol, port, source) in capacity.door(self._plan.spec).items():
            ports = {"port_range_min": port, "port_range_max": port}
            rule = {"remote_ip_prefix": source, "protocol": protocol, **ports}
            kind = "IPv6" if ":" in source else "IPv4"
            self._let_in(f"door-{name}", door, ethertype=kind, **rule)
        return made

    def _let_in(self, name: str, group: pulumi.Output[str], **rule: Any) -> None:
        networking.SecGroupRule(
            name,
            direction="ingress",
            security_group_id=group,
            description=self._tags.apply(" ".join),  # rules have no tags
            opts=self.native(),
            **{"ethertype": "IPv4", **rule},
        )

    def _interface(self) -> networking.RouterInterface:
        subnet_id = self._control.subnets[0]
        if name := self.config.router:
            return networking.RouterInterface(
                "router",
                router_id=self._find("router", name).id,
                subnet_id=subnet_id,
                opts=self.native(),
            )
        inputs = {**self.config.where, "name": self.config.external_network}
        looked_up = pulumi.ResourceOptions.merge(
            self._after_the_look, pulumi.ResourceOptions(delete_before_replace=False)
        )
        external = Network("external", _BACKEND, inputs, looked_up)
        to = external.result["id"]
        router = self.make(networking.Router, "router", external_network_id=to)
        return networking.RouterInterface(
            "router", router_id=router.id, subnet_id=subnet_id, opts=self.native()
        )

    def _rate(self, network: NetworkPlan) -> networking.QosPolicy | None:
        if self.config.shaping == "none" or network.rate_bps is None:
            return None
        policy: networking.QosPolicy = self.make(networking.QosPolicy, "experiment", in_use=True)
        for direction in ("egress", "ingress"):
            networking.QosBandwidthLimitRule(
                f"experiment-{direction}",
                qos_policy_id=policy.id,
                direction=direction,
                max_kbps=network.rate_bps // 1000,
                opts=self.native(),
            )
        return policy

    def _node(self, node: NodePlan) -> _Made:
        within, door = (self._groups[name].id for name in ("nodes", "door"))
        names = self.config.server(node.group).security_groups
        own = [self._find("security group", name).id for name in names]
        on_control = [within, door, *own] if node.role == "head" else [within, *own]
        attached = [self._control.port(node.name, node.control_address, on_control)]
        if self._experiment:
            address = node.experiment_address
            attached.append(self._experiment.port(node.name, address, [within, *own], self._qos))
        ports = [port for port, _ in attached]
        inputs = {"cluster": self._plan.cluster, "uuid": self._uuid, "name": node.name}
        key = HostKey(node.name, _BACKEND, inputs, self._after_the_look)
        server = self._server(node, ports, key)
        self._data_volumes(node, server)
        return _Made(ports[0], key, server, [address for _, address in attached])

    def _server(
        self, node: NodePlan, ports: list[networking.Port], key: HostKey
    ) -> compute.Instance:
        def text(known: list[Any]) -> str:
            private = reading.file(cloud_init.key_path(self._cluster, node.name)).text()
            keys = (known[0], private, known[1]["public"])
            return cloud_init.user_data(node.name, *keys, more_keys=theirs, own=own)

        wanted, image = self.config.server(node.group), self._images[node.image].result["id"]
        theirs, own = list[str](), ""
        if name := wanted.key_pair:
            theirs.append(self._find("key pair", name).public_key.strip())
        if wanted.user_data:
            fix = "correct backend.user_data"
            own = reading.file(Path(wanted.user_data).expanduser(), fix).text()
        by_id, hints = ID.fullmatch(wanted.flavor), dict[str, Any]()
        if wanted.server_group:
            hints["group"] = self._find("server group", wanted.server_group).id
        elif self._affinity:
            hints["group"] = self._affinity.id
        if wanted.reservation:
            hints["additional_properties"] = {"reservation": wanted.reservation}
        boot: dict[str, Any] = {"image_id": image}
        if wanted.boot_volume:
            volume = {
                "uuid": image,
                "source_type": "image",
                "destination_type": "volume",
                "boot_index": 0,
                "volume_size": gib(wanted.boot_volume),
                "delete_on_termination": True,
                **({"volume_type": wanted.volume_type} if wanted.volume_type else {}),
            }
            boot = {"block_devices": [volume]}
        made = pulumi.Output.all(self._public_key, key.result).apply(text)
        data: pulumi.Output[str] = pulumi.Output.secret(made)
        return compute.Instance(
            node.name,
            name=self.name(node.name),
            flavor_id=wanted.flavor if by_id else None,
            flavor_name=None if by_id else wanted.flavor,
            availability_zone=wanted.availability_zone,
            key_pair=self._keypair.name
            if self._keypair and not wanted.key_pair
            else wanted.key_pair,
            user_data=data,
            networks=[{"port": port.id} for port in ports],
            scheduler_hints=[compute.InstanceSchedulerHintArgs(**hints)] if hints else None,
            metadata=self._metadata(**{**wanted.metadata, labels.GROUP: node.group}),
            tags=wanted.tags or None,
            config_drive=wanted.config_drive,
            # By default, the plugin leaves a stopped server stopped.
            power_state="active",
            # cloud-init waits for a route to the outside. A rebuilt server would keep its id, so it
            # would count as configured.
            opts=self.native(*self.routers, replace_on_changes=["imageId"], custom_timeouts=_TIMES),
            **boot,
        )

    def _data_volumes(self, node: NodePlan, server: compute.Instance) -> None:
        wanted, before = self.config.server(node.group), list[compute.VolumeAttach]()
        zone = wanted.availability_zone if wanted.data_volumes else None
        if zone and zone not in self._volume_zones:
            zone = None  # block storage has zones of its own
        for index, wish in enumerate(wanted.data_volumes):
            name = f"{node.name}-data-{index}"
            volume = blockstorage.Volume(
                name,
                name=self.name(name),
                size=gib(wish.size),
                volume_type=wanted.volume_type,
                availability_zone=zone,
                # Without it, an attached volume cannot grow.
                enable_online_resize=True,
                metadata=self._metadata(**({} if wish.delete else {labels.KEEP: "true"})),
                opts=self.native(retain_on_delete=True, delete_before_replace=False),
            )
            # In order: it determines the names of disks on the server.
            before = [
                compute.VolumeAttach(
                    name, instance_id=server.id, volume_id=volume.id, opts=self.native(*before)
                )
            ]

    @cached_property
    def _volume_zones(self) -> set[str]:
        with cloud.errors("list the zones of block storage"):
            storage: Any = self.connection.block_storage
            return {zone.name for zone in storage.availability_zones()}


@dataclass(frozen=True)
class _Made:
    """A node's resources; its addresses on the control and the experiment network."""

    port: networking.Port
    key: HostKey
    server: compute.Instance
    addresses: list[pulumi.Output[str]]


class _Segment:
    """The control or the experiment network, new or existing, and the ports on it."""

    def __init__(self, cluster: Cluster, purpose: str, plan: NetworkPlan, *, gateway: bool) -> None:
        self._cluster, self._purpose = cluster, purpose
        self._wanted: Attachment = getattr(cluster.config, purpose)
        self.found: existing.Segment | None = None
        if self._wanted.network:
            self.found = existing.segment(cluster.connection, purpose, self._wanted)
            self._network_id: pulumi.Input[str] = self.found.network
            self.subnets: list[pulumi.Input[str]] = [*self.found.subnets]
            self.mtu: pulumi.Input[int] = self.found.mtu
            return
        dns, subnet = [str(address) for address in cluster.config.dns], plan.subnet
        # The cloud chooses the control network's MTU.
        mtu, way = plan.mtu, dict[str, Any](no_gateway=True)
        if gateway:
            mtu, way = None, {"gateway_ip": str(subnet[1]), "dns_nameservers": dns or None}
        network: networking.Network = cluster.make(networking.Network, purpose, mtu=mtu)
        first, last = (str(subnet[offset]) for offset in _POOL)
        made: networking.Subnet = cluster.make(
            networking.Subnet,
            purpose,
            network_id=network.id,
            cidr=str(subnet),
            ip_version=4,
            allocation_pools=[networking.SubnetAllocationPoolArgs(start=first, end=last)],
            **way,
        )
        self.subnets, self.mtu = [made.id], network.mtu
        # A subnet with ports cannot be deleted. The plugin would move a port to another subnet in
        # place; as `network_id` depends on the subnet, the port is replaced before.
        self._network_id = pulumi.Output.all(network.id, made.id).apply(lambda ids: ids[0])

    def granted(self, plan: NetworkPlan) -> NetworkPlan:
        """Return the plan with the subnet of an existing network."""
        there = self.found and self.found.addresses
        return plan.model_copy(update={"subnet": there}) if there else plan

    def port(
        self,
        node: str,
        address: object,
        groups: list[Any],
        qos: networking.QosPolicy | None = None,
    ) -> tuple[networking.Port, pulumi.Output[str]]:
        """Declare a node's port, and return it with its address.

        On an existing network, the cloud chooses the address.
        """
        found, wanted, inputs = self.found, self._wanted, dict[str, Any]()
        fixed = [{"subnet_id": id_} for id_ in self.subnets]
        if not found:
            fixed = [{**fixed[0], "ip_address": str(address)}]
        if wanted.vnic_type or wanted.binding_profile:
            inputs["binding"] = {"vnic_type": wanted.vnic_type or "normal"}
            if wanted.binding_profile:
                inputs["binding"]["profile"] = json.dumps(wanted.binding_profile)
        if wanted.port_security:
            inputs["security_group_ids"] = groups
        else:
            inputs |= {"port_security_enabled": False, "no_security_groups": True}
        if wanted.allowed_addresses:
            pairs = [{"ip_address": str(network)} for network in wanted.allowed_addresses]
            inputs["allowed_address_pairs"] = pairs
        port: networking.Port = self._cluster.make(
            networking.Port,
            f"{node}-{self._purpose}",
            *self._cluster.routers,  # the port's floating address depends on it
            network_id=self._network_id,
            fixed_ips=fixed,
            qos_policy_id=qos.id if qos else None,
            admin_state_up=True,
            **inputs,
        )
        if not found:
            return port, pulumi.Output.from_input(str(address))
        within = found.addresses
        # A port may have addresses of several subnets.
        own = port.all_fixed_ips.apply(
            lambda all_: next(a for a in all_ if ip_address(a) in within)
        )
        return port, own


def _granted(
    node: _Made, door: pulumi.Output[str], head: _Made, via: list[dict[str, Any]]
) -> pulumi.Output[dict[str, Any]]:
    def granted(known: list[Any]) -> dict[str, Any]:
        id_, own, address, heads, control, *experiment = known
        user = cloud_init.USER
        return {
            "id": id_,
            "control_address": control,
            "experiment_address": experiment[0] if experiment else None,
            "user": user,
            "host_keys": [own["public"]],
            "via": [*via, {"address": address, "user": user, "host_keys": [heads["public"]]}],
        }

    return pulumi.Output.all(
        node.server.id, node.key.result, door, head.key.result, *node.addresses
    ).apply(granted)
