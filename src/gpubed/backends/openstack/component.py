"""The OpenStack backend's resources as Pulumi sees them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pulumi
from pulumi_openstack import Provider, blockstorage, compute, networking

from gpubed.backends.component import Component
from gpubed.backends.openstack import capacity, cloud, cloud_init, labels
from gpubed.backends.openstack.config import ID, gib, options
from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.spec.plan import ClusterPlan, NetworkPlan, NodePlan
from gpubed.testbeds import uncreated_nodes
from gpubed.testbeds.resources import Capacity, HostKey, Image, Network

_BACKEND = "openstack"
# Nodes start at the tenth address; the cloud's own DHCP servers take some of these.
_POOL = (2, 9)
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
        self._plan, self.config, self._uuid = plan, options(plan.spec), uuid
        self._public_key = public_key
        # The program, of which projects hold copies, passes only a plan.
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
        self._groups = self._security_groups()
        self._control = _Segment(self, "control", plan.control, gateway=True)
        self.router = self._interface()
        self._experiment = (
            _Segment(self, "experiment", plan.experiment, gateway=False)
            if plan.experiment
            else None
        )
        self._qos = self._rate(plan.experiment) if plan.experiment else None
        whole_name = uuid.apply(lambda known: f"gpubed-{plan.cluster}-{known}")
        self._keypair = compute.Keypair(
            "keypair", name=whole_name, public_key=public_key, opts=self.native()
        )
        policy = _POLICIES.get(self.config.anti_affinity)
        self._affinity = policy and compute.ServerGroup(
            "nodes", name=whole_name, policies=policy, opts=self.native()
        )
        failed = uncreated_nodes.read(self._cluster, plan)
        nodes = {node.name: self._node(node) for node in plan.nodes if node.name not in failed}
        port, head, _ = nodes[plan.nodes[0].name]
        door = networking.FloatingIp(
            "door",
            # A floating address needs a router, and blocks that router's removal: an input that
            # depends on the router makes the address go first.
            pool=self.router.id.apply(lambda _: self.config.external_network),
            port_id=port.id,
            **self.owner,
            opts=self.native(self.router),
        )
        results = [
            {"failed": failed[node.name]}
            if node.name in failed
            else _granted(node, *nodes[node.name][1:], door, head)
            for node in plan.nodes
        ]
        self.grant(
            plan, uuid, results, mtu=self._experiment.network.mtu if self._experiment else None
        )

    def native(self, *after: pulumi.Resource, **more: Any) -> pulumi.ResourceOptions:
        """Return the options of the cloud's own resources, which come after the capacity check.

        Addresses, key names and rules are reused, so that the old resource is deleted first.
        """
        return pulumi.ResourceOptions(
            parent=self,
            provider=self._provider,
            depends_on=[self._capacity, *after],
            **{"delete_before_replace": True, **more},
        )

    @property
    def _after_the_look(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._capacity])

    def name(self, thing: str) -> pulumi.Output[str]:
        """Return the name of one of the cluster's resources in the cloud."""
        return self._uuid.apply(lambda known: labels.name(self._plan.cluster, known, thing))

    def make(
        self, kind: Any, name: str, *after: pulumi.Resource, in_use: bool = False, **inputs: Any
    ) -> Any:
        """Declare a resource that has tags; of one that is `in_use`, the new one is made first."""
        options = self.native(*after, delete_before_replace=not in_use)
        return kind(name, name=self.name(name), **self.owner, **inputs, opts=options)

    @property
    def owner(self) -> dict[str, pulumi.Output[Any]]:
        """Tags and description, where both exist; the plugin sets tags in a second call."""
        return {"tags": self._tags, "description": self._tags.apply(" ".join)}

    def _metadata(self, **more: str) -> pulumi.Output[dict[str, str]]:
        cluster = self._plan.cluster
        return self._uuid.apply(lambda known: {**labels.metadata(cluster, known), **more})

    def _provider_of(self) -> Provider:
        cloud_name, region = self.config.cloud, self.config.region
        connection = cloud.connect(cloud_name, region)
        if strays := cloud.strays(connection):
            raise PrerequisiteMissing(
                f"OpenStack: {connection.config.name} of clouds.yaml is used, and Pulumi's plugin "
                f"would mix it with {', '.join(strays)}",
                'eval "$(gpubed env CLUSTER)" in this shell unsets them',
            )
        # Named after the cloud: another cloud is another provider, so that nothing is left on the
        # old one. All settings that openstacksdk found are passed, because the plugin looks for
        # them elsewhere.
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
        for name, (protocol, port, source) in capacity.door(self._plan.spec).items():
            ports = {"port_range_min": port, "port_range_max": port}
            rule = {"remote_ip_prefix": source, "protocol": protocol, **ports}
            self._let_in(f"door-{name}", door, **rule)
        return made

    def _let_in(self, name: str, group: pulumi.Output[str], **rule: Any) -> None:
        networking.SecGroupRule(
            name,
            direction="ingress",
            ethertype="IPv4",
            security_group_id=group,
            description=self._tags.apply(" ".join),  # rules have no tags
            opts=self.native(),
            **rule,
        )

    def _interface(self) -> networking.RouterInterface:
        inputs = {**self.config.where, "name": self.config.external_network}
        looked_up = pulumi.ResourceOptions.merge(
            self._after_the_look, pulumi.ResourceOptions(delete_before_replace=False)
        )
        external = Network("external", _BACKEND, inputs, looked_up)
        to = external.result["id"]
        router = self.make(networking.Router, "router", external_network_id=to)
        return networking.RouterInterface(
            "router", router_id=router.id, subnet_id=self._control.subnet.id, opts=self.native()
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

    def _node(self, node: NodePlan) -> tuple[networking.Port, HostKey, compute.Instance]:
        within, door = (self._groups[name].id for name in ("nodes", "door"))
        on_control = [within, door] if node.role == "head" else [within]
        ports = [self._control.port(node.name, node.control_address, on_control)]
        if self._experiment:
            address = node.experiment_address
            ports.append(self._experiment.port(node.name, address, [within], self._qos))
        inputs = {"cluster": self._plan.cluster, "uuid": self._uuid, "name": node.name}
        key = HostKey(node.name, _BACKEND, inputs, self._after_the_look)
        server = self._server(node, ports, key)
        self._data_volumes(node, server)
        return ports[0], key, server

    def _server(
        self, node: NodePlan, ports: list[networking.Port], key: HostKey
    ) -> compute.Instance:
        def text(known: list[Any]) -> str:
            private = reading.file(cloud_init.key_path(self._cluster, node.name)).text()
            return cloud_init.user_data(node.name, known[0], private, known[1]["public"])

        wanted, image = self.config.server(node.group), self._images[node.image].result["id"]
        by_id, group = ID.fullmatch(wanted.flavor), self._affinity
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
            key_pair=self._keypair.name,
            user_data=data,
            networks=[{"port": port.id} for port in ports],
            scheduler_hints=[compute.InstanceSchedulerHintArgs(group=group.id)] if group else None,
            metadata=self._metadata(**{labels.GROUP: node.group}),
            # The default leaves a stopped server as it is.
            power_state="active",
            # Without a route out, cloud-init would wait for one. A rebuilt server would keep its
            # id and pass for ready.
            opts=self.native(self.router, replace_on_changes=["imageId"]),
            **boot,
        )

    def _data_volumes(self, node: NodePlan, server: compute.Instance) -> None:
        wanted, before = self.config.server(node.group), list[compute.VolumeAttach]()
        zone = wanted.availability_zone if wanted.data_volumes else None
        if zone and zone not in self._volume_zones:
            zone = None  # block storage has zones of its own
        for index, size in enumerate(wanted.data_volumes):
            name = f"{node.name}-data-{index}"
            volume = blockstorage.Volume(
                name,
                name=self.name(name),
                size=gib(size),
                volume_type=wanted.volume_type,
                availability_zone=zone,
                # Without it, an attached volume cannot grow.
                enable_online_resize=True,
                metadata=self._metadata(),
                opts=self.native(retain_on_delete=True, delete_before_replace=False),
            )
            # One after the other: a server names its disks in the order of their attachment.
            before = [
                compute.VolumeAttach(
                    name, instance_id=server.id, volume_id=volume.id, opts=self.native(*before)
                )
            ]

    @cached_property
    def _volume_zones(self) -> set[str]:
        connection = cloud.connect(self.config.cloud, self.config.region)
        with cloud.errors("list the zones of block storage"):
            storage: Any = connection.block_storage
            return {zone.name for zone in storage.availability_zones()}


class _Segment:
    def __init__(self, cluster: Cluster, purpose: str, plan: NetworkPlan, *, gateway: bool) -> None:
        self._cluster, self._purpose = cluster, purpose
        dns, subnet = [str(address) for address in cluster.config.dns], plan.subnet
        # The cloud chooses the control network's packet size.
        mtu, way = plan.mtu, dict[str, Any](no_gateway=True)
        if gateway:
            mtu, way = None, {"gateway_ip": str(subnet[1]), "dns_nameservers": dns or None}
        self.network: networking.Network = cluster.make(networking.Network, purpose, mtu=mtu)
        first, last = (str(subnet[offset]) for offset in _POOL)
        self.subnet: networking.Subnet = cluster.make(
            networking.Subnet,
            purpose,
            network_id=self.network.id,
            cidr=str(subnet),
            ip_version=4,
            allocation_pools=[networking.SubnetAllocationPoolArgs(start=first, end=last)],
            **way,
        )

    def port(
        self,
        node: str,
        address: object,
        groups: list[pulumi.Output[str]],
        qos: networking.QosPolicy | None = None,
    ) -> networking.Port:
        # A cloud keeps a subnet while ports are on it. The plugin would move a port's address to
        # another subnet in place; an input that cannot change makes the port go first.
        network = pulumi.Output.all(self.network.id, self.subnet.id).apply(lambda ids: ids[0])
        port: networking.Port = self._cluster.make(
            networking.Port,
            f"{node}-{self._purpose}",
            self._cluster.router,  # the floating address depends on it, and goes with the port
            network_id=network,
            fixed_ips=[{"subnet_id": self.subnet.id, "ip_address": str(address)}],
            security_group_ids=groups,
            qos_policy_id=qos.id if qos else None,
            admin_state_up=True,
        )
        return port


def _granted(
    node: NodePlan,
    key: HostKey,
    server: compute.Instance,
    door: networking.FloatingIp,
    head: HostKey,
) -> pulumi.Output[dict[str, Any]]:
    def granted(known: list[Any]) -> dict[str, Any]:
        id_, own, address, heads = known
        user, experiment = cloud_init.USER, node.experiment_address
        return {
            "id": id_,
            "control_address": str(node.control_address),
            "experiment_address": str(experiment) if experiment else None,
            "user": user,
            "host_keys": [own["public"]],
            "via": [{"address": address, "user": user, "host_keys": [heads["public"]]}],
        }

    return pulumi.Output.all(server.id, key.result, door.address, head.result).apply(granted)
