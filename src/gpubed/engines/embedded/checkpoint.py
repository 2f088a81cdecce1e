"""Pulumi's checkpoint document: reading and checking a stack's state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

import gpubed
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Document
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import CLI_HINT, DamagedState, Refusal
from gpubed.engines.embedded.state import State, Urn, decode
from gpubed.engines.embedded.values import Properties

_DEFAULT_PROVIDER = "::pulumi:providers:pulumi-python::default"


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
    secrets_providers: _SecretsProvider | None = None
    resources: tuple[_Entry, ...] | None = None
    pending_operations: tuple[_Pending, ...] | None = None


class _Checkpoint(BaseModel):
    latest: _Deployment | None = None


class _File(BaseModel):
    checkpoint: _Checkpoint


@dataclass
class Pending:
    """A provider call that was under way when the state was written."""

    state: State
    type: str


@dataclass
class Checkpoint:
    """A stack's resources and interrupted operations."""

    resources: list[State] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)


def parse(file: Document) -> Properties:
    """Return the checkpoint of a stack file."""
    head = file.json(_Head)
    if head.version not in (3, 4):
        why = "of a Pulumi that is older than gpubed" if head.version < 3 else "which is too new"
        raise GpubedError(f"{file.what} has state version {head.version}, {why}", CLI_HINT)
    if unknown := sorted({*(head.features or ())} - {"taint"}):
        raise Refusal(f"the state feature {', '.join(unknown)}", file.what)
    file.json(_File)
    return dict(file.json(dict[str, Any])["checkpoint"])


def read(latest: Properties, cipher: PassphraseCipher) -> Checkpoint:
    """Decode a deployment; raise `DamagedState` if it breaks the rules of Pulumi's engines."""
    checkpoint = Checkpoint(
        [decode(raw, cipher) for raw in latest.get("resources") or []],
        [
            Pending(decode(raw["resource"], cipher), raw["type"])
            for raw in latest.get("pending_operations") or []
        ],
    )
    verify(checkpoint.resources)
    for state in checkpoint.resources:
        urn = state.urn if state.is_provider else state.provider_urn
        if urn and not urn.endswith(_DEFAULT_PROVIDER):
            raise Refusal("providers other than the default dynamic one", state.name)
    return checkpoint


def verify(resources: Iterable[State]) -> None:
    """Check that resources are listed after those they refer to; raise `DamagedState` if not."""
    listed: set[str] = set()
    alive: set[str] = set()
    for state in resources:
        if missing := [urn for urn in (*state.needs(), state.parent) if urn and urn not in listed]:
            raise DamagedState(f"{state.urn} refers to {missing[0]}, which is not listed before it")
        if state.urn in alive and not state.delete:
            raise DamagedState(f"{state.urn} is listed twice")
        listed.add(state.urn)
        if not state.delete:
            alive.add(state.urn)


def manifest() -> Properties:
    """Return the manifest of a new deployment; its magic is the SHA-256 of its version."""
    version = f"gpubed-{gpubed.__version__}"
    magic = hashlib.sha256(version.encode()).hexdigest()
    return {"time": timestamp(), "magic": magic, "version": version}


def timestamp() -> str:
    """Return the present UTC time as Go prints it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
