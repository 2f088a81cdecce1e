"""Records which node serves the shared storage from its own disk, and detects a change.

The testbed does not know this folder. A plan in which another node serves the storage, or none,
makes the data unavailable to the other nodes, and needs a confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpubed.configuration import roles
from gpubed.core import reading, record
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Cluster
from gpubed.spec import backend_config
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Folder
from gpubed.testbeds import registry
from gpubed.testbeds.base import Existing

if TYPE_CHECKING:
    from gpubed.engines.embedded import ResourceEvent

ROLE = roles.SERVER
_NODE_KINDS = ("Node", "Instance")
_VOLUME = "a volume takes its place"
_ANEW = {"create", "replace", "delete", "delete-replaced"}


class Served(BaseModel):
    """A folder that a node serves from its own disk; a replaced node has another `id`."""

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


def remember(cluster: Cluster) -> None:
    """Record the node that serves the shared storage; None if a volume does."""
    shared, granted, served = cluster.plan.spec.storage.shared, cluster.allocation, None
    if shared.provider == "nfs":
        name = roles.server(cluster.plan)
        id_, backend = granted.node(name).id, granted.backend
        served = Served(node=name, id=id_, path=shared.path, backend=backend).model_dump()
    if record.read(cluster.paths).served != served:
        with record.changed(cluster.paths) as changed:
            changed.served = served


def require_same(paths: ClusterPaths, plan: ClusterPlan) -> None:
    """Raise a `UsageError` if the plan changes the serving node, in verbs that do not ask."""
    if left := left_behind(paths, plan, ()):
        raise UsageError(left[0], f"gpubed up {paths.name} asks before it does that")


def left_behind(
    paths: ClusterPaths,
    plan: ClusterPlan,
    steps: Sequence[ResourceEvent],
    there: Sequence[Existing] | None = None,
) -> list[str]:
    """Return a line about a served folder that nodes would no longer see; empty if it stays.

    Args:
        steps: The planned changes.
        there: The testbed's resources, if the state is lost.
    """
    served = _read(paths)
    if served is None:
        return []
    what = f"{served.path}, which {served.node} serves from its own disk"
    lost = backend_config.named(served.backend).removes_disks
    stays = plan.spec.storage.shared.provider == "nfs"
    then = f"an empty one of {roles.server(plan)} takes its place" if stays else _VOLUME
    # Where disks are kept (own hosts), creating the node again keeps the data.
    ops = _ANEW if lost else _ANEW - {"create"}
    goes = any(
        step.name == served.node and step.op in ops and step.type.endswith(_NODE_KINDS)
        for step in steps
    )
    # The testbed no longer has the node, or its host becomes another node.
    if there is not None and registry.backend(plan.backend).lists_nodes:
        goes = goes or all(thing.id != served.id or thing.heir for thing in there)
    if goes:
        fate = "are lost with it" if lost else "stay on its host, and are served no more"
        return [f"{what}: its data {fate}; {then}"]
    if stays and roles.server(plan) == served.node:
        return []
    return [f"{what}: its data stay there, and are served no more; {then}"]


def _read(paths: ClusterPaths) -> Served | None:
    served = record.read(paths).served
    try:
        return Served.model_validate(served) if served else None
    except ValidationError as error:
        raise reading.Unreadable(
            f"{paths.record} cannot be read: served: {reading.words(error)}",
            f"remove `served` from it, after checking that the data of {paths.name} are in place",
        ) from None
