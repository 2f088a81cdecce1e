"""The options of a testbed in `cluster.yml`, and the facts about it that a plan needs.

These facts are kept with the options, so that a specification can be read and
planned without the libraries that the testbed itself needs.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict

from gpubed.core.errors import PrerequisiteMissing

_BACKENDS = Path(__file__).resolve().parents[1] / "backends"


class BackendConfig(BaseModel):
    """Options of one backend; a sub-class adds `type: Literal[<name>]` and its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Further names that `type` may have; a sub-class must translate them to its own name
    aliases: ClassVar[tuple[str, ...]] = ()
    # What `storage.shared.provider: auto` stands for
    shared_storage: ClassVar[Literal["volume", "nfs"]] = "nfs"
    # Whether nodes may reboot where the specification does not say
    may_reboot: ClassVar[bool] = True
    # Whether it chooses a network's packet size if the specification does not
    chooses_mtu: ClassVar[bool] = False
    plans_addresses: ClassVar[bool] = True  # whether nodes get the addresses of the plan
    lends_nodes: ClassVar[bool] = True  # whether it provides nodes, instead of running jobs itself
    simulates: ClassVar[bool] = False  # whether its nodes can simulate GPUs
    removes_disks: ClassVar[bool] = True  # whether `down` deletes the data on nodes' own disks
    releases: ClassVar[bool] = True  # whether released nodes become free for other users
    leases: ClassVar[bool] = False  # whether it lends nodes for a limited time

    @classmethod
    def of(cls, options: BackendConfig) -> Self:
        """Return `backend:` of a specification; PrerequisiteMissing if it is another backend's."""
        if isinstance(options, cls):
            return options
        raise PrerequisiteMissing(
            f"cluster.yml no longer names the backend {cls.__module__.split('.')[-2]}",
            "put its former `backend:` back until the cluster is down",
        )


@cache
def names() -> tuple[str, ...]:
    """Return the names of all backends, sorted."""
    return tuple(sorted(path.parent.name for path in _BACKENDS.glob("*/config.py")))


@cache
def types() -> tuple[str, ...]:
    """Return the allowed values of `type`: the names of all backends and their aliases, sorted."""
    return tuple(sorted({*names(), *(alias for name in names() for alias in named(name).aliases)}))


def canonical(type_: str) -> str:
    """Return the name of the backend with this name or alias; an unknown `type` unchanged."""
    return next((name for name in names() if type_ in named(name).aliases), type_)


def template(type_: str) -> Path:
    """Return the path of the template for a specification with this `type`."""
    name = canonical(type_)
    return _BACKENDS / name / ("cluster.yml" if name == type_ else f"{type_}.yml")


@cache
def named(name: str) -> type[BackendConfig]:
    """Return the class that holds the options of a backend."""
    config: type[BackendConfig] = import_module(f"gpubed.backends.{name}.config").Config
    return config
