"""Options of the OpenStack backend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core.units import Bytes
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import IpAddress, Network

if TYPE_CHECKING:
    from gpubed.spec.clusterspec import ClusterSpec

ID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")

# The cloud counts in whole GiB: `6` would mean six bytes, and give a volume of one GiB.
Volume = Annotated[Bytes, Field(ge=2**30)]
Text = Annotated[str, Field(min_length=1, max_length=255)]


class ServerOptions(BaseModel):
    """What the servers of one node group are made from; what is absent is as for all groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flavor: Text | None = Field(default=None, description="name or UUID of a flavor of the cloud")
    availability_zone: Text | None = Field(
        default=None, description="chosen by the cloud if absent"
    )
    boot_volume: Volume | None = Field(
        default=None, description="size of a volume to boot from; the flavor's own disk if absent"
    )
    data_volumes: tuple[Volume, ...] = Field(
        default=(), max_length=8, description="sizes of volumes that a node gets; they outlive it"
    )
    volume_type: Text | None = Field(default=None, description="of all volumes of the node")


class Config(ServerOptions, BackendConfig):
    """Servers of an OpenStack cloud; credentials come from clouds.yaml or OS_* variables."""

    chooses_mtu = True

    type: Literal["openstack"]
    cloud: Text | None = Field(
        default=None, description="entry of clouds.yaml; OS_CLOUD or OS_* variables if absent"
    )
    region: Text | None = Field(default=None, description="of a cloud that has several")
    external_network: Text = Field(description="where the floating address comes from")
    access_from: tuple[Network, ...] = Field(
        min_length=1, description="networks that may reach SSH of the head, for example yours"
    )
    flavor: Text = Field(description="name or UUID of the flavor of all groups that name none")
    groups: dict[str, ServerOptions] = Field(
        default={}, description="by node group: what differs there"
    )
    images: dict[str, Text] = Field(
        default={}, description="the cloud's name or id of an image; its own where it is not listed"
    )
    anti_affinity: Literal["soft", "hard", "none"] = Field(
        default="soft", description="each node on a host of its own: if possible, always, no matter"
    )
    shaping: Literal["qos", "none"] = Field(
        default="qos", description="who holds links to their rate: the cloud's network, or nobody"
    )
    dns: tuple[IpAddress, ...] = Field(default=(), description="name servers; else the cloud's")

    def server(self, group: str) -> Server:
        """Return what the servers of a node group are made from."""
        common = {name: getattr(self, name) for name in ServerOptions.model_fields}
        own = self.groups.get(group, ServerOptions())
        return Server.model_validate({**common, **own.model_dump(exclude_unset=True)})

    @property
    def where(self) -> dict[str, Any]:
        """What a driver needs to find the cloud."""
        return {"cloud": self.cloud, "region": self.region}


class Server(ServerOptions):
    """All options of one node group."""

    flavor: Text


def options(spec: ClusterSpec) -> Config:
    """Return the options of a specification that is known to name this backend."""
    assert isinstance(spec.backend, Config)  # noqa: S101
    return spec.backend


def gib(size: int) -> int:
    """Return a size in whole GiB, rounded up, as volumes have it."""
    return -(-size // 2**30)
