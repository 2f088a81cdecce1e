"""Pulumi's checkpoint document: reading, checking and writing a stack's state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import gpubed
from gpubed.engine.failures import CLI_HINT, Refusal
from gpubed.engine.state import Cipher, State, decode
from gpubed.engine.values import Properties
from gpubed.errors import GpubedError

_DEFAULT_PROVIDER = "::pulumi:providers:pulumi-python::default"


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


def check_version(document: Properties, where: str) -> None:
    """Refuses state that a newer Pulumi or another feature set wrote.

    Raises:
        GpubedError: The version is unknown.
        Refusal: The state uses a feature the engine does not implement.
    """
    version = document.get("version")
    if version not in (3, 4):
        raise GpubedError(f"{where} has state version {version}, which is too new", CLI_HINT)
    if features := document.get("features"):
        raise Refusal(f"the state feature {', '.join(features)}", where)


def read(latest: Properties, cipher: Cipher) -> Checkpoint:
    """Decodes a deployment.

    Raises:
        GpubedError: It breaks the rules every Pulumi engine relies on.
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
        raise GpubedError("the state's manifest has a wrong checksum", CLI_HINT)
    verify(checkpoint.resources)
    _refuse_foreign_providers(checkpoint.resources)
    return checkpoint


def verify(resources: Iterable[State]) -> None:
    """Checks that whatever a resource refers to is listed before it.

    Raises:
        GpubedError: A reference dangles, or a URN appears twice.
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


def _broken(state: State, how: str) -> GpubedError:
    return GpubedError(f"the state is inconsistent: {state.urn} {how}", CLI_HINT)


def _refuse_foreign_providers(resources: Iterable[State]) -> None:
    for state in resources:
        urn = state.urn if state.type.startswith("pulumi:providers:") else state.provider_urn
        if urn and not urn.endswith(_DEFAULT_PROVIDER):
            raise Refusal("providers other than the default dynamic one", state.name)


def manifest() -> Properties:
    """Returns the stamp of a new deployment; the magic proves that it is one."""
    version = f"gpubed-{gpubed.__version__}"
    return {"time": timestamp(), "magic": _magic(version), "version": version}


def _magic(version: str) -> str:
    return hashlib.sha256(version.encode()).hexdigest()


def timestamp() -> str:
    """Returns now, as Go prints it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def parse(text: str, where: str, backup: str) -> Properties:
    """Parses a stack file.

    Raises:
        GpubedError: It is cut short or not a checkpoint.
    """
    try:
        document: Any = json.loads(text)
        checkpoint = document["checkpoint"]
    except (ValueError, KeyError, TypeError) as error:
        raise GpubedError(
            f"the state {where} is truncated or damaged",
            f"the content before the last write is in {backup}; copy it over",
        ) from error
    check_version(document, where)
    return dict(checkpoint)
