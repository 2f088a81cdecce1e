"""Decides how each registered resource is created, updated, replaced or kept."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpubed.core.errors import GpubedError, UsageError
from gpubed.engines.embedded import steps
from gpubed.engines.embedded.checkpoint import timestamp
from gpubed.engines.embedded.events import ProviderFailed, Refusal
from gpubed.engines.embedded.protocol import from_struct
from gpubed.engines.embedded.provider import Verdict
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import STACK_TYPE, State, urn_of
from gpubed.engines.embedded.values import UNKNOWN_TEXT, Properties, changed_keys

_PACKAGE = "pulumi-python"
_PROVIDER_TYPE = f"pulumi:providers:{_PACKAGE}"
# The provider of these types, `gpubed.resources`, returns all inputs unchanged from Check.
_UNCHECKED = f"{_PACKAGE}:dynamic/gpubed:"
# Fields of a registration that the engine supports or may ignore; other fields are refused.
_FIELDS = (
    "type name parent custom object retainOnDelete dependencies propertyDependencies"
    " deleteBeforeReplace deleteBeforeReplaceDefined additionalSecretOutputs sourcePosition version"
    " pluginDownloadURL acceptSecrets acceptResources accepts_byte_string supportsPartialValues"
    " supportsResultReporting stackTrace parentStackTraceHandle hideDiffs snippetId"
)


class Registrar:
    """Carries out registrations from many threads."""

    def __init__(self, run: Run, olds: Sequence[State], root: Path) -> None:
        self._run, self._olds, self._root = run, list(olds), root
        self._old = {state.urn: state for state in olds if not state.delete}
        self._registered: set[str] = set()
        # Deleted because a dependency is replaced; the event is set once the deletion is done.
        self._condemned: dict[str, threading.Event] = {}
        self.states: dict[str, State] = {}
        self.root: State | None = None

    def register(self, request: Any) -> State:
        """Create, update, replace or keep a resource, and return its new state."""
        new = self._wanted(request)
        old, condemned = self._claim(new.urn)
        if condemned:
            condemned.wait()
        if old and old.custom != new.custom:
            raise Refusal("turning a resource into a component or back", new.name)
        if new.custom:
            new.provider = self._provider_reference()
            first = request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None
            self._custom(first, old, new, recreate=condemned is not None)
        elif old is None:
            steps.create(self._run, new)
        elif why := changed_keys(old.inputs, new.inputs):
            steps.update(self._run, old, new, why)
        else:
            steps.same(self._run, old, new)
        with self._run.lock:
            self.states[new.urn] = new
            if new.type == STACK_TYPE:
                self.root = new
        return new

    def _wanted(self, request: Any) -> State:
        for field, value in request.ListFields():
            # The text of an empty message is empty.
            if field.name not in _FIELDS.split() and str(value):
                raise Refusal(f"the option {field.name}", request.name)
        if request.custom and not request.type.startswith(f"{_PACKAGE}:"):
            raise Refusal(f"resources of type {request.type}", request.name)
        parent = self.states.get(request.parent)
        if request.parent and not parent:
            raise UsageError(f"{request.name} has a parent that was not registered")
        new = State(
            urn_of(self._run.stack, self._run.project, request.parent, request.type, request.name),
            request.type,
            request.custom,
            inputs=from_struct(request.object),
            parent=request.parent,
            dependencies=list(request.dependencies),
            property_dependencies={
                key: list(value.urns) for key, value in request.propertyDependencies.items()
            },
            additional_secret_outputs=list(request.additionalSecretOutputs),
            source_position=_position(request.sourcePosition, self._root),
        )
        if request.HasField("retainOnDelete"):
            new.retain_on_delete = request.retainOnDelete
        elif parent:
            new.retain_on_delete = parent.retain_on_delete
        return new

    def leftovers(self) -> list[State]:
        """Return the old entries that the program did not register, and replaced ones."""
        return [state for state in self._olds if state.delete or state.urn not in self._registered]

    def _claim(self, urn: str) -> tuple[State | None, threading.Event | None]:
        with self._run.lock:
            self._run.check_open()
            if urn in self._registered:
                why = f"two resources have the URN {urn}"
                raise GpubedError(why, "give one of them another name")
            self._registered.add(urn)
            return self._old.get(urn), self._condemned.get(urn)

    def _provider_reference(self) -> str:
        urn = urn_of(self._run.stack, self._run.project, "", _PROVIDER_TYPE, "default")
        with self._run.lock:
            if urn not in self._registered:
                self._registered.add(urn)
                if not (provider := self._old.get(urn)):
                    # No step: Pulumi does not show it.
                    provider = State(urn, _PROVIDER_TYPE, True, created=timestamp())
                    provider.modified = provider.created
                    provider.id = UNKNOWN_TEXT if self._run.preview else str(uuid.uuid4())
                # Recorded before the resources that refer to it, even if unchanged.
                self._run.journal.record(provider, provider, changed=urn not in self._old)
                self.states[urn] = provider
        return f"{urn}::{self.states[urn].id}"

    def _custom(self, first: bool | None, old: State | None, new: State, *, recreate: bool) -> None:
        run, raw = self._run, new.inputs
        # In a preview, Check would only return the same inputs for thousands of new nodes.
        if not (run.preview and old is None and new.type.startswith(_UNCHECKED)):
            fresh = old is None or recreate or old.taint
            self._check(new, {} if fresh or old is None else old.inputs)
        if old is None:
            steps.create(run, new)
        elif recreate:
            steps.replaced(run, new)
            steps.create(run, new, "create-replacement", old=old)
        elif old.taint:
            # Without `diff`: only the program decides whether the old one is deleted first.
            self._replace(first, old, new, Verdict(True, ("id",), True, False))
        else:
            verdict = self._diff(old, new.inputs)
            if verdict.replace or old.pending_replacement:
                # From the raw inputs: Check may have added defaults from the old resource.
                self._replace(first, old, new, verdict, raw)
            elif verdict.changed:
                steps.update(run, old, new, verdict.why)
            else:
                steps.same(run, old, new)

    def _check(self, new: State, olds: Properties) -> None:
        with self._reporting_failure("check", new):
            new.inputs = self._run.provider.check(new.urn, olds, new.inputs)

    def _diff(self, old: State, inputs: Properties) -> Verdict:
        with self._reporting_failure("diff", old):
            found = self._run.provider.diff(old, inputs)
        why = changed_keys(old.inputs, inputs)
        changed = bool(why) if found.changed is None else found.changed
        why = found.why or (why if changed else ())
        return Verdict(changed, why, changed and found.replace, found.delete_first)

    @contextlib.contextmanager
    def _reporting_failure(self, op: str, state: State) -> Iterator[None]:
        try:
            yield
        except ProviderFailed as failure:
            self._run.reporter.log("error", str(failure), state.urn)
            raise self._run.refuse_step(op, state, failure.reason) from failure

    def _replace(
        self,
        first: bool | None,
        old: State,
        new: State,
        verdict: Verdict,
        raw: Properties | None = None,
    ) -> None:
        run = self._run
        if raw is not None:
            new.inputs = raw
            self._check(new, {})
        if verdict.delete_first if first is None else first:
            self._delete_with_dependents(old)
            steps.replaced(run, new, verdict.why)
            steps.create(run, new, "create-replacement", old=old, why=verdict.why)
        else:
            keeps = not old.pending_replacement
            steps.create(run, new, "create-replacement", old=old, keep_old=keeps, why=verdict.why)
            steps.replaced(run, new, verdict.why)

    def _delete_with_dependents(self, old: State) -> None:
        with self._run.lock:
            victims = steps.dependents_of_replacement(
                old,
                [state for state in self._olds if not state.delete],
                (self._registered | set(self._condemned)) - {old.urn},
                lambda state, inputs: self._diff(state, inputs).replace,
            )
            self._condemned.update({victim.urn: threading.Event() for victim in victims})
        try:
            for victim in reversed(victims):
                steps.delete(self._run, victim, recreate=True)
            if not old.pending_replacement:
                steps.delete(self._run, old, recreate=True)
        finally:
            for victim in victims:
                self._condemned[victim.urn].set()


def _position(source: Any, root: Path) -> str:
    """Return `project:///file#line,column`, so that the state names no path of this machine."""
    if not source.uri:
        return ""
    relative = os.path.relpath(urllib.parse.unquote(urllib.parse.urlparse(source.uri).path), root)
    column = f",{source.column}" if source.column else ""
    return f"project:///{relative}#{source.line}{column}"
