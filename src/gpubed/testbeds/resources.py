"""The Pulumi dynamic resources. The provider's module and name, and the types, never change.

A state refers to the provider by module and class name; after a rename `destroy`
would not find it. The provider holds no secrets and no logic: it looks up the
driver of the backend and kind that the resource names, and delegates.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
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
# Engines call drivers from several threads. Where two threads import a package whose modules import
# each other, Python sees a deadlock, or one gets a module that is not whole yet.
_LOADING = threading.RLock()
_LARGEST_STATE = 2**29  # bytes
_OWN = {"result", "__provider", "on_failure"}  # what drivers do not ask about
_OF_NODES = {"node", "slice"}  # kinds whose change is one of nodes, or of their links


class _Recorded(BaseModel):
    """A resource in a state: which thing it stands for."""

    id: str = ""
    inputs: dict[str, Any] = {}


class _State(BaseModel):
    resources: list[_Recorded] | None = Field(
        default=None, validation_alias=AliasPath("checkpoint", "latest", "resources")
    )


class Provider(ResourceProvider):
    """Delegates to the driver that a resource names by `backend` and `kind`."""

    __module__ = "gpubed.resources"
    # Returns the driver of a resource that every cluster has; set by `gpubed.resources`, which
    # stands above what these drivers need.
    own: ClassVar[Callable[[str], Driver]]

    def diff(self, id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:  # noqa: A002
        """Ask the driver which changed keys replace the resource and which update it."""
        result = olds.get("result") or {}
        with _told():
            change = _driver(news).diff(result, _inputs(olds), _inputs(news))
        if "failed" in result:
            again = news.get("on_failure") != "leave_out" or change.replace or change.update
            change = Change(replace=["failed"] if again else [])
        return DiffResult(
            changes=bool(change.replace or change.update), replaces=list(change.replace)
        )

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Make the resource, or adopt what an interrupted run made."""
        with _told():
            _made_on(props)
            driver = _driver(props)
            _note_change(props, made=True)
            id_, result = _create(driver, props)
        _count(props, id_, 1)
        return CreateResult(id_, {**props, "result": result})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Look at the resource; a resource that is gone has no id."""
        if "failed" in (props.get("result") or {}):
            return ReadResult(id_, props)
        try:
            with _told():
                _made_on(props)
                result = _driver(props).read(id_, _inputs(props))
        except Silent as silence:
            progress.emit("note", message=silence.message)
            return ReadResult(id_, props)
        if result is None:
            return ReadResult("", {})
        return ReadResult(id_, {**props, "result": result})

    def update(self, id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:  # noqa: A002
        """Change the resource in place."""
        with _told():
            _made_on(news)
            driver = _driver(news)
            _note_change(news, made=False)
            result = driver.update(id, _inputs(olds), _inputs(news))
        return UpdateResult({**news, "result": result})

    def delete(self, id: str, props: dict[str, Any]) -> None:  # noqa: A002
        """Remove the resource; it may be gone already.

        What another resource of the stack has adopted stays: after `pulumi state rename`, the
        resource of the new name adopts the node, and then the old one is deleted. What is left of a
        node that failed is removed if that is possible by now; if not, `down` finds it.
        """
        result = props.get("result") or {}
        if "left" in result:
            try:
                _made_on(props)
                _driver(props).delete("", _inputs(props))
            except GpubedError as error:
                said = f"what is left of {props['name']} is not removed: {error.message}"
                progress.emit("note", message=said)
        if "failed" in result:
            return
        if _count(props, id, -1) > 0:
            said = f"{props['kind']} {id} stays: another resource of the stack has it"
            progress.emit("note", message=said)
            return
        with _told():
            _made_on(props)
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
            # What cannot be removed now is looked for when the cluster goes.
            try:
                driver.delete("", _inputs(props))
            except GpubedError as left:
                result["left"] = left.message
            if attempt == attempts:
                return f"failed/{props['name']}", result
    raise AssertionError("the last attempt returns")


def _count(props: Mapping[str, Any], id_: str, change: int) -> int:
    """Change the number of the stack's resources that own a thing, and return it."""
    from gpubed.core.paths import Project

    if "cluster" not in props:
        return 0  # an image is of no cluster
    with _COUNTING:
        owners = _owners(Project.find().cluster(props["cluster"]))
        owners[props["kind"], id_] += change
        return owners[props["kind"], id_]


@functools.cache
def _owners(paths: ClusterPaths) -> Counter[tuple[str, str]]:
    """Return how many resources of a stack own a thing when a run begins, by kind and id."""
    found = Counter[tuple[str, str]]()
    for state in paths.project.pulumi.glob(f".pulumi/stacks/*/{paths.name}.json"):
        with suppress(reading.Unreadable):
            document = reading.file(state, limit=_LARGEST_STATE).json(_State)
            found.update(
                (each.inputs.get("kind", ""), each.id) for each in document.resources or ()
            )
    return found


@contextmanager
def _told() -> Iterator[None]:
    """Tell the user what failed and what repairs it: the engine passes on only a traceback."""
    try:
        yield
    except OSError as error:
        if not is_about_the_disk(error):
            raise
        said = unwritable(error)
        progress.emit("error", message=said.message, hint=said.hint, exit_code=said.exit_code)
        raise said from error
    except Silent:
        raise
    except GpubedError as error:
        progress.emit("error", message=error.message, hint=error.hint, exit_code=error.exit_code)
        raise


def _inputs(props: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in props.items() if key not in _OWN}


def _made_on(props: Mapping[str, Any]) -> None:
    """Note on which testbed a cluster is made; refuse to take another one for it."""
    from gpubed.testbeds import history

    if props["backend"] == "gpubed" or "cluster" not in props:
        return  # an image is of no cluster
    testbed = _testbed(props)
    history.require_same(testbed)
    history.note(testbed)


def _note_change(props: Mapping[str, Any], *, made: bool) -> None:
    """Note that nodes are about to be changed, whichever engine asks for it."""
    from gpubed.core.paths import Project
    from gpubed.nodes import allocation  # nothing else here needs it

    if props["kind"] in _OF_NODES and "cluster" in props:
        # A node that is made, and that the cluster did not have, changes none that it has.
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
    """Return the testbed as the cluster sees it whose resource it is."""
    from gpubed.core.paths import Project
    from gpubed.testbeds import registry

    with _LOADING:
        return registry.bound(props["backend"], Project.find().cluster(props["cluster"]))


class _Managed(Resource):
    """A dynamic resource; `result` is what its driver answered.

    The old one goes before the new one comes, else `create` would adopt what is about to be
    deleted. The program says so, since no provider is asked where a replacement is forced (`pulumi
    up --replace`). Where `delete` removes nothing, the new one may come first, and spares what
    depends on it.
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
    """A look at whether the testbed has what is wanted, before anything is made."""

    delete_first = False


class HostKey(_Managed, module="gpubed", name="HostKey"):
    """A node's SSH host key, made on the controller; only the public half is in the state."""


class Volume(_Managed, module="gpubed", name="Volume"):
    """Storage that nodes share."""

    delete_first = False


class Node(_Managed, module="gpubed", name="Node"):
    """A node; with `on_failure` among its inputs, one that the cluster may do without."""


class Configuration(_Managed, module="gpubed", name="Configuration"):
    """The configured and verified software of a cluster."""
