"""The Slurm part of a specification: users, their shares and limits, partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpubed.core import wording
from gpubed.core.units import Seconds, Whole, WholeOrNone

# Numbers of ordinary users that hosts rarely assign themselves.
_UIDS = range(10000, 60000)
_PUBLIC_KEY = wording.pattern(
    r"^(ssh-(ed25519|rsa)|ecdsa-sha2-\S+|sk-\S+) [A-Za-z0-9+/=]+( [^\n\"]*)?$",
    "a public key, a line of a .pub file, such as 'ssh-ed25519 AAAAC3NzaC1lZDI1… alice@laptop'",
)
PublicKey = Annotated[str, Field(pattern=_PUBLIC_KEY)]
_NAME = wording.pattern(
    r"^[a-z][a-z0-9_-]{0,30}$",
    "lower-case letters, digits, '_' and '-', 31 at most, a letter first",
)
# Users and groups of Debian and Ubuntu, of packages that gpubed installs, and gpubed's own, which
# cannot be a researcher's user and group, too.
_SYSTEM = frozenset(
    (
        *("root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp"),
        *("proxy", "www-data", "backup", "list", "irc", "gnats", "nobody", "nogroup", "adm"),
        *("tty", "disk", "kmem", "dialout", "fax", "voice", "cdrom", "floppy", "tape", "sudo"),
        *("audio", "dip", "operator", "src", "shadow", "utmp", "video", "sasl", "plugdev"),
        *("staff", "users", "input", "sgx", "kvm", "render", "crontab", "netdev", "lxd"),
        *("systemd-journal", "systemd-network", "systemd-resolve", "systemd-timesync"),
        *("systemd-coredump", "messagebus", "polkitd", "sshd", "ssl-cert", "syslog", "tss"),
        *("uuidd", "tcpdump", "landscape", "pollinate", "dnsmasq", "debian", "ubuntu"),
        *("statd", "rdma", "munge", "slurm", "slurmdbd"),
        *("mysql", "prometheus", "docker", "nvpd", "nvidia-persistenced"),
        *("gpubed", "gpubed-serving", "gpubed-tracking", "jupyter", "researchers"),
    )
)


def _free(name: str) -> str:
    if name in _SYSTEM:
        raise ValueError(
            f"nodes have a user or group {name!r} of their own: choose another name for the "
            "researcher"
        )
    return name


_UserName = Annotated[str, Field(pattern=_NAME), AfterValidator(_free)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _without_uid(schema: dict[str, Any]) -> None:
    """Make `uid` optional in the schema, since it is derived from the name."""
    schema["required"].remove("uid")


class SlurmUser(_Model):
    """A researcher: a Unix user of all nodes, with a share and limits.

    Limits apply to the sum of the user's running jobs. A job that exceeds a limit alone is refused;
    other jobs wait until enough jobs have ended.
    """

    model_config = ConfigDict(json_schema_extra=_without_uid)

    name: _UserName = Field(description="no system account of the nodes")
    uid: Whole = Field(
        ge=_UIDS.start, lt=_UIDS.stop, description="Unix number; from the name when absent"
    )
    share: Whole = Field(default=1, ge=1, le=10000, description="in relation to the others' shares")
    max_gpus: WholeOrNone = Field(default=None, ge=0, description="GPUs of all running jobs")
    max_cpus: WholeOrNone = Field(default=None, ge=1, description="CPUs of all running jobs")
    max_jobs: WholeOrNone = Field(default=None, ge=1, description="running jobs")
    ssh_keys: tuple[PublicKey, ...] = Field(default=(), description="public keys, for the head")

    @model_validator(mode="before")
    @classmethod
    def _number(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("uid") is not None:
            return data
        digest = hashlib.sha256(str(data.get("name")).encode()).digest()
        return {**data, "uid": _UIDS[int.from_bytes(digest[:8], "big") % len(_UIDS)]}


class SlurmPartition(_Model):
    """A named set of nodes for jobs."""

    name: str = Field(pattern=_NAME)
    groups: tuple[str, ...] = Field(default=(), description="node groups; all when absent")
    max_time: Seconds | None = Field(default=None, ge=60, description="of a job; none when absent")


class Slurm(_Model):
    """Slurm: jobs of several users wait in one queue, ordered by fair share."""

    users: tuple[SlurmUser, ...] = ()
    partitions: tuple[SlurmPartition, ...] = Field(
        default=(SlurmPartition(name="main"),), description="the first one is the default"
    )
    half_life: Seconds = Field(
        default=7 * 86400.0, ge=60, description="after which used time counts half"
    )

    def partition_of(self, groups: Collection[str]) -> str | None:
        """Return the first partition with all of some node groups; None if there is none."""
        fits = (one for one in self.partitions if not one.groups or set(groups) <= {*one.groups})
        return next((one.name for one in fits), None)

    @model_validator(mode="after")
    def _names_and_numbers_differ(self) -> Self:
        if not self.partitions:
            raise ValueError("at least one partition is needed")
        named: dict[str, list[str | int]] = {
            "partitions are named": [partition.name for partition in self.partitions],
            "users are named": [user.name for user in self.users],
            "users have the uid": [user.uid for user in self.users],
        }
        for kind, values in named.items():
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two {kind} {twice!r}")
        return self
