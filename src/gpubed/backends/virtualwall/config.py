"""Options of the virtualwall backend, and presets of known testbeds."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    RootModel,
    field_validator,
    model_validator,
)

from gpubed.core import reading, wording
from gpubed.core.text import nearest_name
from gpubed.core.units import Count, Port, Seconds
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import FILE, OF_A_SERVER
from gpubed.spec.slurm import PublicKey

if TYPE_CHECKING:
    from gpubed.spec.clusterspec import ClusterSpec

# Name of the file that records a cluster's part of the shared folder.
DATA_RECORD = "shared_folder.json"
_URL = wording.pattern(
    r"^https://[^\s/@]+(/[^\s@]*)?$", "a URL that begins with https://, without a user's name"
)
_URN = wording.pattern(
    r"^urn:publicid:IDN\+[^\s+]+\+[a-z]+\+[^\s]+$",
    "a URN, such as urn:publicid:IDN+wall2.ilabt.iminds.be+authority+cm",
)
_HOST_NAME = wording.pattern(
    r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?$", "a host's name or address"
)
Url = Annotated[str, Field(pattern=_URL), OF_A_SERVER]
Urn = Annotated[str, Field(pattern=_URN)]
File = Annotated[str, Field(pattern=FILE, description="an absolute path, or one below ~")]
HostName = Annotated[str, Field(pattern=_HOST_NAME)]
_FOLDER = wording.pattern(
    r"^/[A-Za-z0-9._/-]+$", "a folder's whole path, of letters, digits, '.', '_', '-' and '/'"
)
Folder = Annotated[str, Field(pattern=_FOLDER)]


class Aggregate(BackendConfig):
    """The testbed's aggregate manager (AM). URL and URN need not name the same domain."""

    url: Url = Field(description="any version's URL: GetVersion tells the one of version 3")
    urn: Urn = Field(description="for example urn:publicid:IDN+wall2.ilabt.iminds.be+authority+cm")


class Authority(BackendConfig):
    """Where the account comes from: slice and member authority, Federation API v2."""

    slices: Url = Field(description="slice authority (SA), ends in /geni-sa/2")
    members: Url = Field(description="member authority (MA), ends in /geni-ma/2")


class Bastion(BackendConfig):
    """The host through which users without IPv6 reach nodes."""

    host: HostName = "bastion.ilabt.imec.be"
    port: Port = 22
    user: str | None = Field(
        default=None,
        pattern=wording.pattern(
            r"^[a-z_][a-z0-9_.-]*$", "a user's name: lower-case letters, digits, '_', '.' and '-'"
        ),
        description="`fff` and the login's name when absent",
    )
    host_keys: tuple[str, ...] = Field(
        default=(), description="`type base64`; taken from ~/.ssh/known_hosts when absent"
    )


class Hardware(BackendConfig):
    """The machines of a node group."""

    type: str | None = Field(
        default=None,
        pattern=wording.pattern(
            r"^[A-Za-z0-9._-]+$", "a hardware type: letters, digits, '.', '_' and '-'"
        ),
        description="hardware type; `gpubed resources` lists them",
    )
    machines: tuple[Urn, ...] = Field(
        default=(), description="component ids, one per node of the group"
    )
    sliver: Literal["raw-pc", "emulab-xen"] = Field(
        default="raw-pc", description="a whole machine, or a virtual one"
    )


class _Presets(RootModel[dict[str, dict[str, Any]]]):
    """Content of `presets.yml`; entries that begin with `_` are only parts of others."""


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the options of known testbeds by name, as in `backend:`."""
    found = reading.file(Path(__file__).with_name("presets.yml")).yaml(_Presets, merges=True).root
    return {name: options for name, options in found.items() if not name.startswith("_")}


def _or_testbed(schema: dict[str, Any]) -> None:
    """Have the JSON schema require `testbed`, or the options that it fills in."""
    schema["properties"]["testbed"]["anyOf"][0]["enum"] = [*presets()]
    filled = [key for key in schema["required"] if key in ("aggregate", "authority")]
    schema["required"] = [key for key in schema["required"] if key not in filled]
    schema |= {"if": {"not": {"required": ["testbed"]}}, "then": {"required": filled}}


class Config(BackendConfig):
    """Nodes of a testbed that speaks GENI AM API v3: Fed4FIRE's, Emulab, CloudLab."""

    model_config = ConfigDict(json_schema_extra=_or_testbed)
    leases = True
    aliases: ClassVar[tuple[str, ...]] = ("geni",)

    # States contain the name, so it cannot change to `geni`.
    type: Annotated[Literal["virtualwall", "geni"], AfterValidator(lambda _: "virtualwall")]
    # States have the options that it fills in instead: a later version may lack the preset.
    testbed: str | None = Field(
        default=None, exclude=True, description="fills in the options of a known testbed"
    )
    aggregate: Aggregate = Field(description="needed without `testbed`")
    authority: Authority = Field(description="needed without `testbed`")
    project: str = Field(
        pattern=wording.pattern(
            r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "letters, digits, '.', '_' and '-', no mark first"
        )
    )
    login: File = Field(description="login PEM: certificate and key, the key may be encrypted")
    passphrase_file: File | None = Field(default=None, description="of the login's key")
    ca: File | None = Field(
        default=None, description="certificates that servers must chain to; else the system's"
    )
    old_tls: bool = Field(
        default=False,
        description="let servers use keys and hashes that are too weak today; "
        "their certificates are verified all the same",
    )
    bastion: Bastion | None = None
    hardware: dict[str, Hardware] = Field(default={}, description="by node group")
    images: dict[str, str] = Field(
        default={}, description="URN of the disk image for each `image` of a node group"
    )
    gpus: dict[str, Count] = Field(
        default={}, description="GPUs of hardware types whose names do not tell"
    )
    public_address: Literal["none", "head", "all"] = Field(
        default="none", description="which nodes ask for a public IPv4 address"
    )
    shared_folder: Folder | None = Field(
        default=None, description="folder that all nodes mount, for storage.shared.provider: volume"
    )
    host_keys: Literal["proved", "first_use"] = Field(
        default="proved", description="first_use trusts the first key that a node shows"
    )
    nat: bool = Field(
        default=True,
        description="give nodes IPv4 through imec's NAT; false where they have public addresses",
    )
    # Newer options default to None, which states omit: those of older versions stay unchanged.
    extra_space: Folder | None = Field(
        default=None, description="folder for the rest of the disk of /, made by Emulab's mkextrafs"
    )
    login_keys: tuple[PublicKey, ...] | None = Field(
        default=None, description="public keys of colleagues, for the nodes' user"
    )
    poll: Seconds = Field(default=15.0, ge=0.05, description="between two looks at booting nodes")
    patience: Seconds = Field(default=2700.0, ge=1, description="for nodes that boot, and for busy")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Add the options of the testbed's preset; the user's keys win, also within mappings."""
        name = data.get("testbed") if isinstance(data, dict) else None
        if not isinstance(name, str):
            return data
        # For an unknown name, any preset avoids errors besides that of the name.
        preset = presets().get(name) or next(iter(presets().values()))
        both = {k: v for k, v in preset.items() if isinstance(v, dict)}
        both = {k: v | data[k] for k, v in both.items() if isinstance(data.get(k), dict)}
        return preset | data | both

    @field_validator("testbed")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in presets():
            raise ValueError(f"there is no testbed {name!r}; {nearest_name(name, presets())}")
        return name


def unmapped(spec: "ClusterSpec") -> list[str]:
    """Return the images of node groups that `images` maps to no disk image."""
    return sorted({group.image for group in spec.nodes} - Config.of(spec.backend).images.keys())
