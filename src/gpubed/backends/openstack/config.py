"""Options of the OpenStack backend."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gpubed.core import wording
from gpubed.core.units import Bytes
from gpubed.spec import sections
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import FILE, IpAddress, KeyFile, Section, User, any_network

ID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")

# Clouds count in GiB: `6` would mean six bytes, rounded up to one GiB.
Volume = Annotated[Bytes, Field(ge=2**30)]
Text = Annotated[str, Field(min_length=1, max_length=255)]
Id = Annotated[str, Field(pattern=wording.pattern(rf"^{ID.pattern}$", "a UUID"))]
Source = Annotated[
    IPv4Network | IPv6Network, BeforeValidator(any_network, json_schema_input_type=str)
]


def _floating(value: object) -> object:
    try:
        return value if isinstance(value, bool) else IPv4Address(str(value))
    except ValueError:
        raise ValueError("must be true, false or an address, such as 203.0.113.7") from None


class DataVolume(Section):
    """A volume that a node gets, and that outlives the node."""

    size: Volume
    delete: bool = Field(default=True, description="false: `gpubed down` keeps it, and says so")


def _sized(value: object) -> object:
    return value if isinstance(value, dict | DataVolume) else {"size": value}


class Bastion(sections.Bastion):
    """A host that nodes are reached through."""

    user: User
    key: KeyFile = Field(default="~/.ssh/id_ed25519", description="private key")


VnicType = Literal[
    "normal", "direct", "direct-physical", "macvtap", "virtio-forwarder", "baremetal"
]


class Attachment(Section):
    """How nodes are attached to the control or the experiment network."""

    network: Text | None = Field(
        default=None, description="name or UUID of a network that exists; a new one if absent"
    )
    subnet: Text | None = Field(
        default=None, description="name or UUID; for a network that has several"
    )
    vnic_type: VnicType | None = Field(default=None, description="of ports; `direct` is SR-IOV")
    binding_profile: dict[str, Any] = Field(
        default={}, description="of ports; most clouds let only operators set it"
    )
    port_security: bool = Field(
        default=True, description="false: neither security groups nor checks of addresses"
    )
    allowed_addresses: tuple[Source, ...] = Field(
        default=(), description="networks that ports may send from beside their own address"
    )


class ServerOptions(Section):
    """Options of the servers of a node group; absent ones are those of all groups."""

    flavor: Text | None = Field(default=None, description="name or UUID of a flavor of the cloud")
    availability_zone: Text | None = Field(
        default=None, description="chosen by the cloud if absent"
    )
    boot_volume: Volume | None = Field(
        default=None, description="size of a volume to boot from; the flavor's own disk if absent"
    )
    data_volumes: tuple[
        Annotated[DataVolume, BeforeValidator(_sized, json_schema_input_type=DataVolume | Volume)],
        ...,
    ] = Field(
        default=(), max_length=8, description="sizes of volumes that a node gets; they outlive it"
    )
    volume_type: Text | None = Field(default=None, description="of all volumes of the node")
    config_drive: bool | None = Field(
        default=None,
        description="give cloud-init its data on a disk; chosen by the cloud if absent",
    )
    security_groups: tuple[Text, ...] = Field(
        default=(), description="names or UUIDs of groups that ports get beside the cluster's own"
    )
    key_pair: Text | None = Field(
        default=None, description="a key pair of yours, which lets in beside the cluster's own key"
    )
    user_data: Annotated[str, Field(pattern=FILE)] | None = Field(
        default=None, description="file for cloud-init, merged with gpubed's own"
    )
    tags: tuple[Text, ...] = Field(default=(), description="of servers, beside the metadata")
    metadata: dict[Text, Text] = Field(
        default={}, description="of servers, beside the cluster's own"
    )
    server_group: Text | None = Field(
        default=None, description="name or UUID of one that exists, in place of `anti_affinity`"
    )
    reservation: Id | None = Field(
        default=None, description="UUID of a host reservation of Blazar (not that of its lease)"
    )


class NetworkOptions(Section):
    """The networks of nodes, and the way to reach them."""

    external_network: Text | None = Field(
        default=None,
        description="where the floating address comes from, and where a new router leads",
    )
    floating_ip: Annotated[
        bool | IPv4Address, BeforeValidator(_floating, json_schema_input_type=bool | str)
    ] = Field(
        default=True,
        description="of the head: a new one, none (false), or a free one of the project, which "
        "`gpubed down` keeps",
    )
    router: Text | None = Field(
        default=None, description="name or UUID of one that exists, for the new control network"
    )
    control: Attachment = Attachment()
    experiment: Attachment = Attachment()
    bastions: tuple[Bastion, ...] = Field(
        default=(), max_length=4, description="hosts to go through to the head, first one first"
    )


class Config(ServerOptions, NetworkOptions, BackendConfig):
    """Servers of an OpenStack cloud; credentials come from clouds.yaml or OS_* variables."""

    chooses_mtu = True

    type: Literal["openstack"]
    cloud: Text | None = Field(
        default=None, description="entry of clouds.yaml; OS_CLOUD or OS_* variables if absent"
    )
    region: Text | None = Field(default=None, description="of a cloud that has several")
    access_from: tuple[Source, ...] = Field(
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
        """Return all options of the servers of a node group."""
        common = {name: getattr(self, name) for name in ServerOptions.model_fields}
        own = self.groups.get(group, ServerOptions())
        return Server.model_validate({**common, **own.model_dump(exclude_unset=True)})

    @property
    def plans_addresses(self) -> bool:  # type: ignore[override]
        """Whether nodes get the addresses of the plan; on existing networks, the cloud chooses."""
        return not (self.control.network or self.experiment.network)

    @property
    def where(self) -> dict[str, Any]:
        """The inputs by which drivers find the cloud."""
        return {"cloud": self.cloud, "region": self.region}


class Server(ServerOptions):
    """All options of one node group."""

    flavor: Text


def gib(size: int) -> int:
    """Return a size in bytes as GiB, rounded up."""
    return -(-size // 2**30)
