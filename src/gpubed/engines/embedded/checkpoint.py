"""Pulumi's checkpoint document: a stack's state, read, checked, and kept on disk during a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

import gpubed
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Document
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import CLI_HINT, DamagedState, Refusal
from gpubed.engines.embedded.state import State, Urn, decode, encode
from gpubed.engines.embedded.values import Properties

if TYPE_CHECKING:
    from gpubed.engines.embedded.backend import StackFile

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
    """Check that a resource is listed after all it refers to; raise `DamagedState` if it is not."""
    seen: set[str] = set()
    alive: set[str] = set()
    for state in resources:
        if missing := [urn for urn in (*state.needs(), state.parent) if urn and urn not in seen]:
            raise DamagedState(f"{state.urn} refers to {missing[0]}, which is not listed before it")
        if state.urn in alive and not state.delete:
            raise DamagedState(f"{state.urn} is listed twice")
        seen.add(state.urn)
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


class Journal:
    """Collects this run's states and writes them with the untouched old ones.

    A pending operation is on disk before a provider is called, so that a killed engine leaves a
    trace of the call. Results are written by the next group commit: many steps share one write.
    Without a file (in a preview), nothing is written.
    """

    def __init__(
        self, checkpoint: Checkpoint, cipher: PassphraseCipher, file: StackFile | None
    ) -> None:
        self._cipher = cipher
        self._file = file
        self._base = {id(state): state for state in checkpoint.resources}
        self._done: dict[int, State] = {}
        # Only an interrupted create may have left something that no state names.
        self._pending = [op for op in checkpoint.pending if op.type == "creating"]
        self._encoded: dict[int, str] = {}
        self._changed = threading.Condition(threading.RLock())
        self._version = self._written = 0
        self._error: Exception | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        if file:
            self._writer.start()

    def resources(self) -> list[State]:
        """Return this run's states in order of completion, then the untouched old ones."""
        with self._changed:
            return [*self._done.values(), *self._base.values()]

    def begin(self, state: State, type_: str) -> Pending:
        """Record a provider call that is about to start, and wait until the record is on disk."""
        operation = Pending(state, type_)
        with self._changed:
            self._pending.append(operation)
            self._bump()
            version = self._version
            while self._file and self._written < version and not self._error:
                self._changed.wait()
            if self._error:
                raise self._error
        return operation

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Write the changes of the body together."""
        with self._changed:
            yield

    def settle(self, operation: Pending | None) -> None:
        """Remove a pending operation; record its result in the same `atomic` body."""
        if operation:
            with self._changed:
                self._pending.remove(operation)
                self._bump()

    def record(
        self, new: State | None = None, replaces: State | None = None, *, changed: bool = True
    ) -> None:
        """Add a finished state and drop the one it replaces."""
        with self._changed:
            if replaces:
                self._base.pop(id(replaces), None)
                self._done.pop(id(replaces), None)
            if new:
                self._done[id(new)] = new
            if changed:
                self._bump()

    def touch(self, state: State) -> None:
        """Mark a recorded state as changed in place."""
        with self._changed:
            self._encoded.pop(id(state), None)
            self._bump()

    def forget_interrupted(self) -> None:
        """Drop the interrupted creations of earlier runs."""
        with self._changed:
            if self._pending:
                self._pending.clear()
                self._bump()

    def close(self) -> None:
        """Write what is outstanding and end the writer; raise if the state could not be written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._file:
            self._writer.join()
        if self._error:
            raise self._error

    def _bump(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _write_loop(self) -> None:
        assert self._file is not None  # noqa: S101
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._version > self._written)
                if self._version == self._written:
                    return
                version, text = self._version, self._text(self._file)
            try:
                if not self._written:
                    self._file.keep()
                self._file.write(text)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._written = version
                self._changed.notify_all()

    def _text(self, file: StackFile) -> str:
        latest = {
            "manifest": manifest(),
            "secrets_providers": {"type": "passphrase", "state": {"salt": self._cipher.salt}},
        }
        checkpoint = {"stack": f"organization/{file.project}/{file.stack}"}
        states = self.resources()
        tainted = any(state.taint for state in states)
        head = {"version": 4, "features": ["taint"]} if tainted else {"version": 3}
        for state in states:
            if id(state) not in self._encoded:
                self._encoded[id(state)] = self._encode(state)
        resources = [self._encoded[id(state)] for state in states]
        pending = [
            f'{{"resource":{self._encode(op.state)},"type":{json.dumps(op.type)}}}'
            for op in self._pending
        ]
        # One resource per line keeps the file readable and diffs useful.
        lists = "".join(
            f',"{name}":[\n{lines}\n]'
            for name, items in (("resources", resources), ("pending_operations", pending))
            if (lines := ",\n".join(items))
        )
        return (
            f"{json.dumps(head)[:-1]},"
            f'"checkpoint":{json.dumps(checkpoint)[:-1]},"latest":{json.dumps(latest)[:-1]}{lists},'
            '"metadata":{}}}}\n'
        )

    def _encode(self, state: State) -> str:
        return json.dumps(encode(state, self._cipher))
