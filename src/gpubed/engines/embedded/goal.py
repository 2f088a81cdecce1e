"""What the program wants of one resource."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.protocol import resource_pb2 as pb
from gpubed.engines.embedded.values import Properties, from_struct

PROVIDER_PACKAGE = "pulumi-python"


@dataclass(frozen=True)
class Goal:
    """A registration, decoded; None means that the program left the option open."""

    type: str
    name: str
    custom: bool
    parent: str
    inputs: Properties
    dependencies: list[str]
    property_dependencies: dict[str, list[str]]
    protect: bool | None
    retain_on_delete: bool | None
    delete_before_replace: bool | None
    ignore_changes: list[str]
    additional_secret_outputs: list[str]
    source_position: str


@dataclass(frozen=True)
class ReadGoal:
    """A request to read a resource that somebody else manages (`.get`), decoded."""

    type: str
    name: str
    id: str
    parent: str
    inputs: Properties
    dependencies: list[str]
    additional_secret_outputs: list[str]
    source_position: str


# What the monitor advertises includes these, so that the refusal is ours and names the CLI.
_REFUSED: dict[str, Callable[[Any], Any]] = {
    "remote components": lambda r: r.remote,
    "importing resources": lambda r: r.importId,
    "aliases": lambda r: r.aliases or r.aliasURNs,
    "transforms": lambda r: r.transforms,
    "resource hooks": lambda r: r.hooks.ListFields(),
    "state migrations": lambda r: r.state_migrations,
    "the option replaceOnChanges": lambda r: r.replaceOnChanges,
    "the option replaceWith": lambda r: r.replace_with,
    "the option replacementTrigger": lambda r: (
        r.HasField("replacement_trigger")
        and r.replacement_trigger.WhichOneof("kind") not in (None, "null_value")
    ),
    "the option deletedWith": lambda r: r.deletedWith,
    "the option customTimeouts": lambda r: r.customTimeouts.ListFields(),
    "explicit providers": lambda r: r.provider or r.providers,
    "provider packages": lambda r: r.packageRef,
}


def from_request(request: pb.RegisterResourceRequest, root: Path) -> Goal:
    """Decodes a registration.

    Args:
        request: What the SDK sent.
        root: The project's folder.

    Raises:
        Refusal: It asks for something the embedded engine leaves out.
    """
    for feature, is_asked in _REFUSED.items():
        if is_asked(request):
            raise Refusal(feature, request.name)
    if request.custom:
        _check_type(request)
    return Goal(
        type=request.type,
        name=request.name,
        custom=request.custom,
        parent=request.parent,
        inputs=from_struct(request.object),
        dependencies=list(request.dependencies),
        property_dependencies={
            key: list(value.urns) for key, value in request.propertyDependencies.items()
        },
        protect=request.protect if request.HasField("protect") else None,
        retain_on_delete=request.retainOnDelete if request.HasField("retainOnDelete") else None,
        delete_before_replace=(
            request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None
        ),
        ignore_changes=list(request.ignoreChanges),
        additional_secret_outputs=list(request.additionalSecretOutputs),
        source_position=_position(request.sourcePosition, root),
    )


def from_read_request(request: pb.ReadResourceRequest, root: Path) -> ReadGoal:
    """Decodes a request to read.

    Args:
        request: What the SDK sent.
        root: The project's folder.

    Raises:
        Refusal: It asks for something the embedded engine leaves out.
    """
    if request.type.endswith(":StackReference"):
        raise Refusal("stack references", request.name)
    if request.provider:
        raise Refusal("explicit providers", request.name)
    _check_type(request)
    return ReadGoal(
        type=request.type,
        name=request.name,
        id=request.id,
        parent=request.parent,
        inputs=from_struct(request.properties),
        dependencies=list(request.dependencies),
        additional_secret_outputs=list(request.additionalSecretOutputs),
        source_position=_position(request.sourcePosition, root),
    )


def _check_type(request: pb.RegisterResourceRequest | pb.ReadResourceRequest) -> None:
    if not request.type.startswith(f"{PROVIDER_PACKAGE}:"):
        raise Refusal(f"resources of type {request.type}", request.name)


def _position(source: Any, root: Path) -> str:
    """Returns `project:///file#line,column`, so that the state names no path of this machine."""
    if not source.uri:
        return ""
    relative = os.path.relpath(urllib.parse.unquote(urllib.parse.urlparse(source.uri).path), root)
    column = f",{source.column}" if source.column else ""
    return f"project:///{relative}#{source.line}{column}"
