"""Pulumi's checkpoint document: reading, checking and writing a stack's state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

import gpubed
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Document
from gpubed.engines.embedded.failures import CLI_HINT, DamagedState, Refusal
from gpubed.engines.embedded.state import Cipher, State, decode
from gpubed.engines.embedded.urn import Urn
from gpubed.engines.embedded.values import Properties

_DEFAULT_PROVIDER = "::pulumi:providers:pulumi-python::default"
# What a state may need of its readers, and this one can do.
_FEATURES = frozenset({"taint"})


class _Model(BaseModel):
    # An engine may tell more than this one reads; it goes back as it came.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Entry(_Model):
    """What everybody needs of a resource; `state.decode` looks at the rest."""

    urn: Urn
    type: str
    custom: bool
    id: str = ""
    inputs: Properties = {}
    outputs: Properties = {}


class _Pending(_Model):
    resource: _Entry
    type: str


class _Salt(_Model):
    salt: str | None = None


class _SecretsProvider(_Model):
    type: str = "passphrase"
    state: _Salt | None = None


class _Manifest(_Model):
    version: str = ""
    magic: str = ""


class _Deployment(_Model):
    manifest: _Manifest | None = None
    secrets_providers: _SecretsProvider | None = None
    resources: tuple[_Entry, ...] | None = None
    pending_operations: tuple[_Pending, ...] | None = None


class _Checkpoint(_Model):
    latest: _Deployment | None = None


class _Head(_Model):
    """What tells whether the rest of a stack file can be understood."""

    version: int
    features: tuple[str, ...] | None = None


class _File(_Model):
    """A stack file, as far as it is relied on."""

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


def check_version(version: int, features: Sequence[str], where: str) -> None:
    """Refuses state that a newer Pulumi or another feature set wrote.

    Raises:
        GpubedError: The version is unknown.
        Refusal: The state uses a feature the engine does not implement.
    """
    if version < 3:
        raise GpubedError(
            f"{where} has state version {version}, of a Pulumi that is older than gpubed", CLI_HINT
        )
    if version not in (3, 4):
        raise GpubedError(f"{where} has state version {version}, which is too new", CLI_HINT)
    if unknown := sorted(set(features) - _FEATURES):
        raise Refusal(f"the state feature {', '.join(unknown)}", where)


def read(latest: Properties, cipher: Cipher) -> Checkpoint:
    """Decodes a deployment.

    Raises:
        DamagedState: It breaks the rules every Pulumi engine relies on.
    """
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
    _refuse_foreign_providers(checkpoint.resources)
    return checkpoint


def verify(resources: Iterable[State]) -> None:
    """Checks that whatever a resource refers to is listed before it.

    Raises:
        DamagedState: A reference dangles, or a URN appears twice.
    """
    seen: set[str] = set()
    alive: set[str] = set()
    providers: set[str] = set()
    for state in resources:
        _verify_one(state, seen, alive, providers)
        seen.add(state.urn)
        if not state.delete:
            alive.add(state.urn)
        if state.type.startswith("pulumi:providers:"):
            providers.add(f"{state.urn}::{state.id}")


def _verify_one(state: State, seen: set[str], alive: set[str], providers: set[str]) -> None:
    if state.urn in alive and not state.delete:
        raise _broken(state, "is listed twice")
    if state.id and not state.custom:
        raise _broken(state, "is a component and has an id")
    if state.provider and state.provider not in providers:
        raise _broken(state, f"refers to the unknown provider {state.provider}")
    for urn in (*state.needs(), *([state.parent] if state.parent else [])):
        if urn not in seen:
            raise _broken(state, f"refers to {urn}, which is not listed before it")


def _broken(state: State, how: str) -> DamagedState:
    return DamagedState(f"{state.urn} {how}")


def _refuse_foreign_providers(resources: Iterable[State]) -> None:
    for state in resources:
        urn = state.urn if state.type.startswith("pulumi:providers:") else state.provider_urn
        if urn and not urn.endswith(_DEFAULT_PROVIDER):
            raise Refusal("providers other than the default dynamic one", state.name)


def head(resources: Iterable[State]) -> Properties:
    """Returns the version of a stack file, and what its readers must be able to do."""
    if any(state.taint for state in resources):
        return {"version": 4, "features": ["taint"]}
    return {"version": 3}


def manifest() -> Properties:
    """Returns the stamp of a new deployment; the magic proves that it is one."""
    version = f"gpubed-{gpubed.__version__}"
    return {"time": timestamp(), "magic": _magic(version), "version": version}


def _magic(version: str) -> str:
    return hashlib.sha256(version.encode()).hexdigest()


def timestamp() -> str:
    """Returns now, as Go prints it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def parse(file: Document) -> Properties:
    """Parses a stack file.

    Raises:
        Unreadable: It is cut short or not a checkpoint.
        GpubedError: A newer Pulumi wrote it.
    """
    head = file.json(_Head)
    check_version(head.version, head.features or (), file.what)
    file.json(_File)
    return dict(file.json(dict[str, Any])["checkpoint"])
