"""The Pulumi dynamic resources, and the provider that passes them to drivers.

The types, and the provider's module and name, must never change: states refer to them, and
`destroy` would not find them. The provider holds no secrets.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pulumi
from pulumi.dynamic import (
    CreateResult,
    DiffResult,
    ReadResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)
from pydantic import AliasPath, BaseModel, Field

from gpubed.core import progress, reading
from gpubed.core.errors import GpubedError, is_about_the_disk, unwritable
from gpubed.testbeds.base import Testbed
from gpubed.testbeds.driver import Change, Driver, NodeFailed, Silent

if TYPE_CHECKING:
    from gpubed.core.paths import ClusterPaths

_COUNTING = threading.Lock()
# Engines call drivers from several threads. If two threads import modules that import each other,
# Python reports a deadlock, or one thread gets a module that is only partly loaded.
_LOADING = threading.RLock()
_LARGEST_STATE = 2**29  # bytes
_NOT_FOR_DRIVERS = {"result", "__provider", "on_failure"}  # inputs that drivers do not get
_OF_NODES = {"node", "slice"}  # kinds whose changes affect nodes or their links


class _Recorded(BaseModel):
    """A resource in a state."""

    id: str = ""
    inputs: dict[str, Any] = {}


class _State(BaseModel):
    resources: list[_Recorded] | None = Field(
        default=None, validation_alias=AliasPath("checkpoint", "latest", "resources")
    )


class Provider(ResourceProvider):
    """Delegates to the driver that a resource names by `backend` and `kind`."""

    __module__ = "gpubed.resources"
    # Returns the driver of a kind that every cluster has. `gpubed.resources` sets it: this package
    # must not import those drivers.
    own: ClassVar[Callable[[str], Driver]]

    def diff(self, id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:  # noqa: A002
        """Ask the driver which changed keys replace the resource and which update it."""
        result = olds.get("result") or {}
        with _reporting():
            change = _driver(news).diff(result, _inputs(olds), _inputs(news))
        if "failed" in result:
            again = news.get("on_failure") != "leave_out" or change.replace or change.update
            change = Change(replace=["failed"] if again else [])
        return DiffResult(
            changes=bool(change.replace or change.update), replaces=list(change.replace)
        )

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Make the resource, or adopt what an interrupted run made."""
        with _reporting():
            _require_same_testbed(props)
            driver = _driver(props)
            _note_change(props, made=True)
            id_, result = _create(driver, props)
        _count(props, id_, 1)
        return CreateResult(id_, {**props, "result": result})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Return the resource's present outputs; a resource that is gone gets an empty id."""
        if "failed" in (props.get("result") or {}):
            return ReadResult(id_, props)
        try:
            with _reporting():
                _require_same_testbed(props)
                result = _driver(props).read(id_, _inputs(props))
        except Silent as silence:
            progress.emit("note", message=silence.message)
            return ReadResult(id_, props)
        if result is None:
            return ReadResult("", {})
        return ReadResult(id_, {**props, "result": result})

    def update(self, id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:  # noqa: A002
        """Change the resource in place."""
        with _reporting():
            _require_same_testbed(news)
            driver = _driver(news)
            _note_change(news, made=False)
            result = driver.update(id, _inputs(olds), _inputs(news))
        return UpdateResult({**news, "result": result})

    def delete(self, id: str, props: dict[str, Any]) -> None:  # noqa: A002
        """Remove the resource; it may be gone already.

        A thing that another resource of the stack has adopted stays: after `pulumi state rename`,
        the resource with the new name adopts the node before the old one is deleted. Remains of a
        failed node are removed if possible; else `down` finds them.
        """
        result = props.get("result") or {}
        if "left" in result:
            try:
                _require_same_testbed(props)
                _driver(props).delete("", _inputs(props))
            except GpubedError as error:
                message = f"the remains of {props['name']} are not removed: {error.message}"
                progress.emit("note", message=message)
        if "failed" in result:
            return
        if _count(props, id, -1) > 0:
            message = f"{props['kind']} {id} stays: another resource of the stack has it"
            progress.emit("note", message=message)
            return
        with _reporting():
            _require_same_testbed(props)
            _driver(props).delete(id, _inputs(props))


def _create(driver: Driver, props: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Make the resource; a node that the cluster may do without may fail (`on_failure`)."""
    attempts = 2 if props.get("on_failure") == "replace" else 1
    for attempt in range(1, attempts + 1):
        try:
            return driver.create(_inputs(props))
        except NodeFailed as error:
            if not props.get("on_failure"):
                raise
            progress.emit("note", message=f"{props['name']} failed: {error.message}")
            result = {"failed": error.message}
            # `delete` tries again to remove the remains.
            try:
                driver.delete("", _inputs(props))
            except GpubedError as left:
                result["left"] = left.message
            if attempt == attempts:
                return f"failed/{props['name']}", result
    raise AssertionError("the last attempt returns")


def _count(props: Mapping[str, Any], id_: str, change: int) -> int:
    """Add to the number of the stack's resources that own a thing, and return it."""
    from gpubed.core.paths import Project

    if "cluster" not in props:
        return 0  # an image belongs to no cluster
    with _COUNTING:
        owners = _owners(Project.find().cluster(props["cluster"]))
        owners[props["kind"], id_] += change
        return owners[props["kind"], id_]


@functools.cache
def _owners(paths: ClusterPaths) -> dict[tuple[str, str], int]:
    """Return how many resources of the stored stack own each thing, by kind and id."""
    if paths.project.has_users_program:
        return defaultdict(lambda: 1)  # its state may be anywhere
    found = Counter[tuple[str, str]]()
    for state in paths.project.pulumi.glob(f".pulumi/stacks/*/{paths.name}.json"):
        with suppress(reading.Unreadable):
            document = reading.file(state, limit=_LARGEST_STATE).json(_State)
            found.update(
                (each.inputs.get("kind", ""), each.id) for each in document.resources or ()
            )
    return found


@contextmanager
def _reporting() -> Iterator[None]:
    """Report an error with its hint to the user: the engine passes on only a traceback."""
    try:
        yield
    except OSError as error:
        if not is_about_the_disk(error):
            raise
        full = unwritable(error)
        progress.emit("error", message=full.message, hint=full.hint, exit_code=full.exit_code)
        raise full from error
    except Silent:
        raise
    except GpubedError as error:
        progress.emit("error", message=error.message, hint=error.hint, exit_code=error.exit_code)
        raise


def _inputs(props: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in props.items() if key not in _NOT_FOR_DRIVERS}


def _require_same_testbed(props: Mapping[str, Any]) -> None:
    """Record the testbed that a cluster is made on; refuse another one of the same kind."""
    from gpubed.testbeds import history

    if props["backend"] == "gpubed" or "cluster" not in props:
        return  # an image belongs to no cluster
    testbed = _testbed(props)
    history.require_same(testbed)
    history.note(testbed)


def _note_change(props: Mapping[str, Any], *, made: bool) -> None:
    """Record that nodes are about to be changed."""
    from gpubed.core.paths import Project
    from gpubed.nodes import allocation  # nothing else here needs it

    if props["kind"] in _OF_NODES and "cluster" in props:
        # A new node changes none of the existing ones.
        new = props["name"] if made and props["kind"] == "node" else ""
        allocation.note_change(Project.find().cluster(props["cluster"]), new)


def _driver(props: Mapping[str, Any]) -> Any:
    from gpubed.testbeds import registry

    with _LOADING:
        if props["backend"] == "gpubed":
            return Provider.own(props["kind"])
        named = _testbed(props) if "cluster" in props else registry.backend(props["backend"])
        return named.driver(props["kind"])


def _testbed(props: Mapping[str, Any]) -> Testbed:
    """Return the testbed of the resource's cluster."""
    from gpubed.core.paths import Project
    from gpubed.testbeds import registry

    with _LOADING:
        return registry.bound(props["backend"], Project.find().cluster(props["cluster"]))


class _Managed(Resource):
    """A dynamic resource; `result` holds the outputs of its driver.

    A replacement deletes the old resource first, else `create` would adopt the thing that is about
    to be deleted. The program sets this order, since Pulumi asks no provider for a forced
    replacement (`pulumi up --replace`). Kinds whose `delete` removes nothing keep Pulumi's order.
    """

    result: pulumi.Output[dict[str, Any]]
    delete_first = True

    def __init__(
        self,
        name: str,
        backend: str,
        inputs: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        kind = type(self).__name__.lower()
        props = {**inputs, "backend": backend, "kind": kind, "result": None}
        order = pulumi.ResourceOptions(delete_before_replace=self.delete_first)
        super().__init__(Provider(), name, props, pulumi.ResourceOptions.merge(order, opts))


class Identity(_Managed, module="gpubed", name="Identity"):
    """The cluster's UUID."""

    delete_first = False


class Key(_Managed, module="gpubed", name="Key"):
    """The cluster's SSH key pair; only the public half is in the state."""

    delete_first = False


class Image(_Managed, module="gpubed", name="Image"):
    """An operating system image for nodes."""

    delete_first = False


class Network(_Managed, module="gpubed", name="Network"):
    """A network between nodes."""


class Slice(_Managed, module="gpubed", name="Slice"):
    """Nodes and links that a testbed grants and takes back as one."""


class Capacity(_Managed, module="gpubed", name="Capacity"):
    """A check, before resources are made, that the testbed has enough for them."""

    delete_first = False


class HostKey(_Managed, module="gpubed", name="HostKey"):
    """A node's SSH host key, made on the controller; only the public half is in the state."""


class Volume(_Managed, module="gpubed", name="Volume"):
    """Storage that nodes share."""

    delete_first = False


class Node(_Managed, module="gpubed", name="Node"):
    """A node; the input `on_failure` is set if the cluster may do without it."""


class Configuration(_Managed, module="gpubed", name="Configuration"):
    """The configured and verified software of a cluster."""
