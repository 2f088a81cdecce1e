"""What a cluster needs of a cloud: computed from the plan alone."""

from __future__ import annotations

from collections import Counter
from typing import Self

from pydantic import BaseModel, ConfigDict

from gpubed.backends.openstack import security
from gpubed.backends.openstack.config import Config, Server
from gpubed.spec.plan import ClusterPlan

_GIB = 2**30


def gib(size: int) -> int:
    """Return a size in whole GiB, as volumes have it; never less than asked for."""
    return -(-size // _GIB)


class _Model(BaseModel):
    # A resource also carries `backend` and `kind`, which are the engine's.
    model_config = ConfigDict(frozen=True, extra="ignore")


class GroupNeeds(_Model):
    """Servers of one kind; `image` is the cloud's name of it."""

    name: str
    count: int
    gpus: int
    image: str
    server: Server

    def volumes(self) -> list[int]:
        """Return the sizes of a node's volumes in GiB."""
        boot = [self.server.boot_volume] if self.server.boot_volume else []
        return [gib(size) for size in (*boot, *self.server.data_volumes)]


class Needs(_Model):
    """All that is looked at before anything is made.

    Attributes:
        networks: Control, and experiment where there is one.
        qos: Whether the cloud must hold links to their rate.
        members: How many servers share one server group; 0 without anti-affinity.
        rules: Of all security groups.
    """

    cloud: str | None = None
    region: str | None = None
    groups: tuple[GroupNeeds, ...]
    external_network: str
    networks: int
    qos: bool
    members: int
    rules: int

    @classmethod
    def of(cls, plan: ClusterPlan) -> Self:
        """Return the needs of a plan."""
        config = plan.spec.backend
        assert isinstance(config, Config)  # noqa: S101  # the registry chose this backend by it
        return cls(
            cloud=config.cloud,
            region=config.region,
            groups=tuple(
                GroupNeeds(
                    name=group.name,
                    count=group.count,
                    gpus=group.gpus,
                    image=config.image(group.image),
                    server=config.server(group.name),
                )
                for group in plan.spec.nodes
            ),
            external_network=config.external_network,
            networks=2 if plan.experiment else 1,
            qos=plan.experiment is not None and config.shaping == "qos",
            members=0 if config.anti_affinity == "none" else len(plan.nodes),
            # OpenStack puts two rules for what goes out into each group.
            rules=1 + len(security.door(plan.spec, config)) + 2 * 2,
        )

    @property
    def nodes(self) -> int:
        """How many servers, in all."""
        return sum(group.count for group in self.groups)

    def counted(self) -> Counter[str]:
        """Return how many of each thing, by the name of its quota; flavors are not known here."""
        volumes = [(group.count, size) for group in self.groups for size in group.volumes()]
        return Counter(
            {
                "instances": self.nodes,
                "ports": self.networks * self.nodes + 1,  # and the router's
                "networks": self.networks,
                "subnets": self.networks,
                "routers": 1,
                "floating_ips": 1,
                "security_groups": 2,
                "security_group_rules": self.rules,
                "keypairs": 1,
                "server_groups": 1 if self.members else 0,
                "volumes": sum(count for count, _ in volumes),
                "gigabytes": sum(count * size for count, size in volumes),
            }
        )
