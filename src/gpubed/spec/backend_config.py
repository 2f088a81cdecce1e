"""The options of a testbed in `cluster.yml`, and the facts about it that a plan needs.

These facts are kept with the options, so that a specification can be read and
planned without the libraries that the testbed itself needs.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

_BACKENDS = Path(__file__).resolve().parents[1] / "backends"


class BackendConfig(BaseModel):
    """Options of one backend; a sub-class adds `type: Literal[<name>]` and its own.

    Attributes:
        shared_storage: What `storage.shared.provider: auto` stands for.
        may_reboot: Whether nodes may reboot where the specification does not say.
        chooses_mtu: Whether it chooses a network's packet size where the specification does not.
        plans_addresses: Whether nodes get the addresses of the plan.
        lends_nodes: Whether it gives nodes, and does not run jobs itself.
        simulates: Whether its nodes can pretend to have GPUs.
        removes_disks: Whether what is on a node's own disks goes with the node.
        releases: Whether nodes that are given back are free for others.
        leases: Whether it lends nodes for a time, and takes them back at its end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shared_storage: ClassVar[Literal["volume", "nfs"]] = "nfs"
    may_reboot: ClassVar[bool] = True
    chooses_mtu: ClassVar[bool] = False
    plans_addresses: ClassVar[bool] = True
    lends_nodes: ClassVar[bool] = True
    simulates: ClassVar[bool] = False
    removes_disks: ClassVar[bool] = True
    releases: ClassVar[bool] = True
    leases: ClassVar[bool] = False


@cache
def names() -> tuple[str, ...]:
    """Return the names of all backends, sorted."""
    return tuple(sorted(path.parent.name for path in _BACKENDS.glob("*/config.py")))


def template(name: str) -> Path:
    """Return the path of the template for a specification on a backend."""
    return _BACKENDS / name / "cluster.yml"


@cache
def named(name: str) -> type[BackendConfig]:
    """Return the class that holds the options of a backend."""
    config: type[BackendConfig] = import_module(f"gpubed.backends.{name}.config").Config
    return config
