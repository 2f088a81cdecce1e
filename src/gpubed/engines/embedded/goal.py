"""Decodes a registration, the program's request for one resource."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.protocol import resource_pb2 as pb
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import from_struct

PROVIDER_PACKAGE = "pulumi-python"

# The monitor advertises these features, so that the engine refuses them and names the CLI.
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


@dataclass(frozen=True)
class Goal:
    """A decoded registration; None means that the program left the option open.

    Attributes:
        state: What does not depend on the parent's options; its URN is still missing.
    """

    state: State
    name: str
    protect: bool | None
    retain_on_delete: bool | None
    delete_before_replace: bool | None


def from_request(request: pb.RegisterResourceRequest, root: Path) -> Goal:
    """Decode a registration; raise `Refusal` if it asks for what the engine lacks."""
    for feature, is_asked in _REFUSED.items():
        if is_asked(request):
            raise Refusal(feature, request.name)
    if request.custom and not request.type.startswith(f"{PROVIDER_PACKAGE}:"):
        raise Refusal(f"resources of type {request.type}", request.name)
    needs = {key: list(value.urns) for key, value in request.propertyDependencies.items()}
    state = State(
        "",
        request.type,
        request.custom,
        inputs=from_struct(request.object),
        parent=request.parent,
        dependencies=list(request.dependencies),
        property_dependencies=needs,
        ignore_changes=list(request.ignoreChanges),
        additional_secret_outputs=list(request.additionalSecretOutputs),
        source_position=_position(request.sourcePosition, root),
    )
    first = request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None
    protect, retain = (
        getattr(request, name) if request.HasField(name) else None
        for name in ("protect", "retainOnDelete")
    )
    return Goal(state, request.name, protect, retain, first)


def _position(source: Any, root: Path) -> str:
    """Return `project:///file#line,column`, so that the state names no path of this machine."""
    if not source.uri:
        return ""
    relative = os.path.relpath(urllib.parse.unquote(urllib.parse.urlparse(source.uri).path), root)
    column = f",{source.column}" if source.column else ""
    return f"project:///{relative}#{source.line}{column}"
