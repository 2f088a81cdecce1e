"""Options of the static backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from gpubed.core.units import Port
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import Address, Bastion, IpAddress, KeyFile, Name, Section, User


class Host(Section):
    """A host that exists already."""

    address: Address = Field(description="where SSH answers: a name or an address")
    port: Port = 22
    experiment_address: IpAddress | None = Field(
        default=None, description="on the experiment network"
    )


def host_of(inputs: Mapping[str, Any]) -> Host:
    """Read a node's host from its inputs, ignoring options of newer versions."""
    return Host.model_validate(inputs["host"], extra="ignore")


class Config(BackendConfig):
    """The user's own hosts."""

    plans_addresses = False
    may_reboot = False
    removes_disks = False
    releases = False

    type: Literal["static"]
    user: User = Field(description="login on all hosts; may use sudo without a password")
    key: KeyFile = Field(
        default="~/.ssh/id_ed25519", description="private key that lets in; an agent may hold it"
    )
    known_hosts: str = Field(
        default="~/.ssh/known_hosts", description="host keys that are trusted already"
    )
    bastions: tuple[Bastion, ...] = Field(
        default=(), max_length=4, description="hosts to go through, first one first"
    )
    hosts: dict[Name, tuple[Host, ...]] = Field(description="the hosts of each node group")
