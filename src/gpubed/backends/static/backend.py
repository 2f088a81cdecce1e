"""The static backend: the user's own hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpubed.backends.static.config import Config
from gpubed.core.errors import PrerequisiteMissing
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend

# Pulumi's and paramiko's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan

_HOSTS = ("backend", "hosts")


class StaticBackend(Backend):
    """Hosts that their owner installed; gpubed never reboots or wipes them unasked."""

    name = "static"
    lists_nodes = True

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse groups without hosts, and hosts that cannot be on the experiment network."""
        return [*_groups(spec), *_networks(spec), *_addresses(spec)]

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare a node for each planned host."""
        from gpubed.backends.component import Component
        from gpubed.testbeds.resources import Node

        config, cluster = Config.of(plan.spec.backend), Component(self.name, plan.cluster, opts)

        def result(planned: NodePlan) -> pulumi.Output[dict[str, Any]]:
            inputs = {
                "cluster": plan.cluster,
                "uuid": uuid,
                "name": planned.name,
                "host": config.hosts[planned.group][planned.index].model_dump(mode="json"),
                "config": config.model_dump(mode="json", exclude={"hosts"}),
                "image": planned.image,
                "gpus": planned.gpus,
                "public_key": public_key,
                "on_failure": planned.on_failure,
            }
            return Node(planned.name, self.name, inputs, cluster.children).result

        return cluster.grant(plan, uuid, [result(planned) for planned in plan.nodes])

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the address, port, user and bastions of the host, which change in place."""
        from gpubed.backends.static import access

        config = Config.of(plan.spec.backend)
        host = config.hosts[node.group][node.index]
        address = host.experiment_address
        found: dict[str, Any] = {
            "experiment_address": str(address) if address else None,
            "port": host.port,
            "user": config.user,
        }
        with suppress(PrerequisiteMissing):  # `doctor` and `up` report an unknown key
            found["via"] = [hop.model_dump() for hop in access.hops(config)]
        return found


def _groups(spec: ClusterSpec) -> Iterator[Problem]:
    hosts = Config.of(spec.backend).hosts
    wanted = {group.name: group.count for group in spec.nodes}
    for name, count in wanted.items():
        here = len(hosts.get(name, ()))
        if here < count:
            message = f"{name} has {here} hosts for {count} nodes"
            yield Problem((*_HOSTS, name) if here else _HOSTS, message, f"{count} hosts")
    for name in hosts.keys() - wanted.keys():
        yield Problem((*_HOSTS, name), f"there is no node group {name!r}", ", ".join(wanted))


def _networks(spec: ClusterSpec) -> Iterator[Problem]:
    control, experiment = spec.networks.control, spec.networks.experiment
    if experiment is None:
        if spec.count > 1 and control.subnet is None:
            yield Problem(
                ("networks",),
                "control.subnet is missing: with no experiment network, jobs communicate over it",
                "the subnet of the hosts' addresses",
            )
        return
    if experiment.subnet is None:
        yield Problem(("networks", "experiment"), "subnet is missing", "that of the hosts")
    if experiment.latency or experiment.loss:
        yield Problem(("networks", "experiment"), "latency and loss of own hosts cannot be set")


def _addresses(spec: ClusterSpec) -> Iterator[Problem]:
    network, seen, within = spec.networks.experiment, set(), set()
    for group, hosts in Config.of(spec.backend).hosts.items():
        for index, host in enumerate(hosts):
            where = (*_HOSTS, group, index)
            if (host.address, host.port) in seen:
                yield Problem((*where, "address"), f"{host.address} is listed twice")
            seen.add((host.address, host.port))
            if network is None or network.subnet is None:
                continue
            if host.experiment_address is None:
                yield Problem(where, "experiment_address is missing", f"one of {network.subnet}")
            elif host.experiment_address not in network.subnet:
                message = f"{host.experiment_address} is not in {network.subnet}"
                yield Problem((*where, "experiment_address"), message)
            elif host.experiment_address in within:
                message = f"{host.experiment_address} is listed twice"
                yield Problem((*where, "experiment_address"), message)
            within.add(host.experiment_address)
