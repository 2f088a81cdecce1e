"""Which node serves the shared storage from its own disk, and since when that is another's.

A volume is known by the testbed; a folder that a node serves over NFS by nothing but the node.
So what was served last is kept beside the state: a plan that would have another node serve, or
none, takes the data on it from all others, and is asked about first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from gpubed.configuration import roles
from gpubed.core import reading, record
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.nodes.cluster import Cluster
from gpubed.spec import backend_config
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Folder
from gpubed.testbeds import registry
from gpubed.testbeds.base import Existing

if TYPE_CHECKING:
    from gpubed.engines.embedded import ResourceEvent

ROLE = roles.SERVER
_NODE_KINDS = ("Node", "Instance")
_ANEW = {"create", "replace", "delete", "delete-replaced"}


class Served(BaseModel):
    """A folder that a node serves from its own disk.

    Attributes:
        node: The node's name.
        id: Its id: another node may have the name by now.
        path: Where all nodes see the folder.
        backend: The testbed that the node is of.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    node: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    id: Annotated[str, Field(min_length=1)]
    path: Folder
    backend: str

    @field_validator("backend")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in backend_config.names():
            raise ValueError(f"there is no backend {name!r}")
        return name


class _Inputs(BaseModel):
    """Of the variables that were rendered last, those of the role that serves."""

    nfs_server: str
    nfs_path: str


class _All(BaseModel):
    vars: _Inputs


_RENDERED = TypeAdapter(dict[Literal["all"], _All])


def remember(cluster: Cluster) -> None:
    """Keep which node serves the shared storage, once it does; nothing where none does."""
    if cluster.plan.spec.storage.shared.provider != "nfs":
        if record.read(cluster.paths).served:
            with record.changed(cluster.paths) as known:
                known.served = None
        return
    name = roles.server(cluster.plan)
    served = Served(
        node=name,
        id=cluster.allocation.node(name).id,
        path=cluster.plan.spec.storage.shared.path,
        backend=cluster.allocation.backend,
    )
    kept = None
    with suppress(reading.Unreadable):  # whoever was to be asked has been
        kept = _noted(cluster.paths)
    if served != kept:
        _write(cluster.paths, served)


def note_former(paths: ClusterPaths) -> None:
    """Keep what a former version, which kept nothing, had served, before it is rendered anew."""
    if not record.read(paths).served and (served := _rendered(paths)):
        _write(paths, served)


def _write(paths: ClusterPaths, served: Served) -> None:
    with record.changed(paths) as known:
        known.served = served.model_dump()


def require_same(paths: ClusterPaths, plan: ClusterPlan) -> None:
    """Refuse to have another node serve where nobody asks.

    Raises:
        UsageError: The specification names another one than has served.
        Unreadable: What was kept cannot be read.
    """
    if left := left_behind(paths, plan, ()):
        raise UsageError(left[0], f"gpubed up {paths.name} asks before it does that")


def left_behind(
    paths: ClusterPaths,
    plan: ClusterPlan,
    steps: Sequence[ResourceEvent],
    there: Sequence[Existing] | None = None,
) -> list[str]:
    """Say what nodes would see no more of what one has served, a line for the folder.

    Args:
        paths: The cluster's.
        plan: What the specification wants.
        steps: What becomes of its resources; none where no state tells.
        there: What is found again of a cluster whose state is lost; None where nobody looked.

    Raises:
        Unreadable: What was kept cannot be read.
    """
    served = _noted(paths) or _rendered(paths)
    if served is None:
        return []
    what = f"{served.path}, which {served.node} serves from its own disk"
    lost = backend_config.named(served.backend).removes_disks
    then = _then(plan)
    if _goes(served, steps) or (there is not None and _is_missed(served, there, plan)):
        with_it = "is lost with it" if lost else "stays on its host, and is served no more"
        return [f"{what}: what is on it {with_it}; {then}"]
    if plan.spec.storage.shared.provider == "nfs" and roles.server(plan) == served.node:
        return []
    return [f"{what}: what is on it stays there, and is served no more; {then}"]


def _then(plan: ClusterPlan) -> str:
    if plan.spec.storage.shared.provider != "nfs":
        return "a volume takes its place"
    return f"an empty one of {roles.server(plan)} takes its place"


def _goes(served: Served, steps: Sequence[ResourceEvent]) -> bool:
    """Say whether a plan takes the node away; one that is made has been lost before.

    An own host is taken in again with all that is on it.
    """
    ops = _ANEW if backend_config.named(served.backend).removes_disks else _ANEW - {"create"}
    return any(
        step.name == served.node and step.op in ops and step.type.endswith(_NODE_KINDS)
        for step in steps
    )


def _is_missed(served: Served, there: Sequence[Existing], plan: ClusterPlan) -> bool:
    """Say whether the node is not there any more, or its host is to be another one."""
    if not registry.backend(plan.backend).lists_nodes:
        return False
    return all(thing.id != served.id or thing.heir for thing in there)


def _noted(paths: ClusterPaths) -> Served | None:
    kept = record.read(paths).served
    try:
        return Served.model_validate(kept) if kept else None
    except ValidationError as error:
        raise reading.Unreadable(
            f"{paths.record} cannot be read: served: {reading.words(error)}",
            f"remove `served` from it, when all data of {paths.name} are where they should be",
        ) from None


def _rendered(paths: ClusterPaths) -> Served | None:
    """Return what the inventory rendered last has a node serve, once roles were applied by it."""
    if not paths.verification.exists():
        return None
    with suppress(GpubedError, LookupError, ValueError):  # what is no inventory tells nothing
        variables = reading.file(paths.variables)
        if b"nfs_server:" not in variables.data:
            return None  # of many nodes, it takes long to parse
        given = variables.yaml(_RENDERED)["all"].vars
        allocation = allocations.load(paths.allocation)
        return Served(
            node=given.nfs_server,
            id=allocation.node(given.nfs_server).id,
            path=given.nfs_path,
            backend=allocation.backend,
        )
    return None
