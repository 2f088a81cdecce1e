"""Options of the static backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gpubed.core import wording
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.units import Port
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import IpAddress, Name, Section

if TYPE_CHECKING:
    from gpubed.spec.clusterspec import ClusterSpec

# Directories have names such as `First.Last`. None of these characters has a meaning in shells,
# sudoers, ssh_config or sshd_config; `@` would separate user and host in AllowUsers.
User = Annotated[
    str,
    Field(
        pattern=wording.pattern(
            r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$", "a user's name: letters, digits, '_', '.' and '-'"
        )
    ),
]


def _without_port(address: str) -> str:
    host, colon, port = address.partition(":")
    if colon and port.isdecimal():
        raise ValueError(
            f"names a port: write address: {host} and, as a key of its own, port: {port} "
            f"(gpubed init NAME --from FILE takes a list of host:port)"
        )
    return address


# A name or an address, which OpenSSH cannot mistake for an option.
Address = Annotated[
    str,
    Field(
        pattern=wording.pattern(r"^[A-Za-z0-9][A-Za-z0-9.:-]*$", "a host's name or address"),
        max_length=253,
    ),
    AfterValidator(_without_port),
]


def _without_quotes(path: str) -> str:
    if '"' in path:
        raise ValueError("holds a double quote: rename the file")
    return path


KeyFile = Annotated[str, AfterValidator(_without_quotes)]


class Host(Section):
    """A host that somebody has made already."""

    address: Address = Field(description="where SSH answers: a name or an address")
    port: Port = 22
    experiment_address: IpAddress | None = Field(
        default=None, description="on the experiment network"
    )


def host_of(inputs: Mapping[str, Any]) -> Host:
    """Read a node's host from its inputs, ignoring keys of newer versions."""
    return Host.model_validate(inputs["host"], extra="ignore")


class Bastion(Section):
    """A host that others are reached through."""

    address: Address
    port: Port = 22
    user: User | None = Field(default=None, description="else the user of the hosts")
    key: KeyFile | None = Field(default=None, description="private key; else the key of the hosts")


class Config(BackendConfig):
    """Hosts of one's own."""

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


def options(spec: ClusterSpec) -> Config:
    """Return the options of a specification; PrerequisiteMissing if it names another testbed."""
    if not isinstance(spec.backend, Config):
        raise PrerequisiteMissing(
            f"the specification of {spec.name} no longer says on which hosts it is",
            "put its former `backend:` back until the cluster is down",
        )
    return spec.backend
