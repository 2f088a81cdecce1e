"""Pulumi's checkpoint document: reading, checking and writing a stack's state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

import gpubed
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Document
from gpubed.engines.embedded.failures import CLI_HINT, DamagedState, Refusal
from gpubed.engines.embedded.state import Cipher, State, Urn, decode
from gpubed.engines.embedded.values import Properties

_DEFAULT_PROVIDER = "::pulumi:providers:pulumi-python::default"
_FEATURES = frozenset({"taint"})  # state features that this engine knows


class _Head(BaseModel):
    version: int
    features: tuple[str, ...] | None = None


class _Entry(BaseModel):
    """The fields of a resource that are read before `state.decode` reads them all."""

    urn: Urn
    type: str
    custom: bool


class _Pending(BaseModel):
    resource: _Entry
    type: str


class _SecretsProvider(BaseModel):
    type: str = ""
    state: dict[str, Any] | None = None


class _Deployment(BaseModel):
    manifest: dict[str, Any] | None = None
    secrets_providers: _SecretsProvider | None = None
    resources: tuple[_Entry, ...] | None = None
    pending_operations: tuple[_Pending, ...] | None = None


class _Checkpoint(BaseModel):
    latest: _Deployment | None = None


class _File(BaseModel):
    checkpoint: _Checkpoint


@dataclass
class Operation:
    """A provider call that was under way when the state was written."""

    state: State
    type: str


@dataclass
class Checkpoint:
    """A stack's resources and interrupted operations."""

    resources: list[State] = field(default_factory=list)
    pending: list[Operation] = field(default_factory=list)


def parse(file: Document) -> Properties:
    """Return the checkpoint of a stack file.

    Raises:
        Unreadable: The file is cut short or not a checkpoint.
        GpubedError: The file's version is unsupported.
        Refusal: The state uses a feature the engine does not implement.
    """
    head = file.json(_Head)
    if head.version not in (3, 4):
        why = "of a Pulumi that is older than gpubed" if head.version < 3 else "which is too new"
        raise GpubedError(f"{file.what} has state version {head.version}, {why}", CLI_HINT)
    if unknown := sorted(set(head.features or ()) - _FEATURES):
        raise Refusal(f"the state feature {', '.join(unknown)}", file.what)
    file.json(_File)
    return dict(file.json(dict[str, Any])["checkpoint"])


def read(latest: Properties, cipher: Cipher) -> Checkpoint:
    """Decode a deployment; raise `DamagedState` if it breaks the rules of Pulumi's engines."""
    checkpoint = Checkpoint(
        [decode(raw, cipher) for raw in latest.get("resources") or []],
        [
            Operation(decode(raw["resource"], cipher), raw["type"])
            for raw in latest.get("pending_operations") or []
        ],
    )
    manifest = latest.get("manifest") or {}
    version, magic = manifest.get("version", ""), manifest.get("magic", "")
    if (version or magic) and magic != _magic(version):
        raise DamagedState("its manifest has a wrong checksum")
    verify(checkpoint.resources)
    for state in checkpoint.resources:
        urn = state.urn if state.is_provider else state.provider_urn
        if urn and not urn.endswith(_DEFAULT_PROVIDER):
            raise Refusal("providers other than the default dynamic one", state.name)
    return checkpoint


def verify(resources: Iterable[State]) -> None:
    """Check that a resource is listed after all it refers to; raise `DamagedState` if it is not."""
    seen: set[str] = set()
    alive: set[str] = set()
    providers: set[str] = set()
    for state in resources:
        missing = [urn for urn in (*state.needs(), state.parent) if urn and urn not in seen]
        faults = {
            "is listed twice": state.urn in alive and not state.delete,
            "is a component and has an id": state.id and not state.custom,
            f"refers to the unknown provider {state.provider}": (
                state.provider and state.provider not in providers
            ),
            f"refers to {missing[:1]}, which is not listed before it": missing,
        }
        for fault, found in faults.items():
            if found:
                raise DamagedState(f"{state.urn} {fault}")
        seen.add(state.urn)
        if not state.delete:
            alive.add(state.urn)
        if state.is_provider:
            providers.add(f"{state.urn}::{state.id}")


def head(resources: Sequence[State]) -> Properties:
    """Return the version of a stack file, and the features that a reader must know."""
    if any(state.taint for state in resources):
        return {"version": 4, "features": ["taint"]}
    return {"version": 3}


def manifest() -> Properties:
    """Return the manifest of a new deployment; its magic is the SHA-256 of its version."""
    version = f"gpubed-{gpubed.__version__}"
    return {"time": timestamp(), "magic": _magic(version), "version": version}


def _magic(version: object) -> str:
    return hashlib.sha256(str(version).encode()).hexdigest()


def timestamp() -> str:
    """Return the present UTC time as Go prints it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
