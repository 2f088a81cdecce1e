"""Options of the Slurm backend."""

from typing import Annotated, Literal

from pydantic import Field

from gpubed.core import wording
from gpubed.spec.backend_config import BackendConfig

_NAMED = wording.pattern(r"^[A-Za-z0-9_.,-]+$", "a name as Slurm lists it")
_WORD = wording.pattern(r"^[^\s-]\S*$", "a word without spaces")


class Config(BackendConfig):
    """Jobs of an existing Slurm cluster; a job gets all nodes of the specification."""

    lends_nodes = False
    releases = False
    plans_addresses = False
    shared_storage = "volume"

    type: Literal["slurm"]
    login: str = Field(
        pattern=_WORD,
        description="where `sbatch` is: user@host[:port], or an alias of ~/.ssh/config",
    )
    account: str | None = Field(default=None, pattern=_NAMED, description="sbatch's --account")
    partition: str | None = Field(default=None, pattern=_NAMED, description="sbatch's --partition")
    qos: str | None = Field(default=None, pattern=_NAMED, description="sbatch's --qos")
    constraint: str | None = Field(
        default=None, pattern=_WORD, description="sbatch's --constraint, such as a100|h100"
    )
    folder: str = Field(
        default="~/gpubed",
        pattern=wording.pattern(r"^(~/|/)[A-Za-z0-9._/-]+$", "a path that begins with / or ~/"),
        description="on the cluster's shared file system, where gpubed may write",
    )
    modules: tuple[Annotated[str, Field(pattern=_WORD)], ...] = Field(
        default=(), description="environment modules to load, such as Python/3.12"
    )
    setup: tuple[str, ...] = Field(
        default=(), description="lines of shell to run after that, as proxies need"
    )
