"""Decides how each registered resource is created, updated, replaced or kept."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubed.core.errors import GpubedError, UsageError
from gpubed.engines.embedded import dependents, steps
from gpubed.engines.embedded.checkpoint import timestamp
from gpubed.engines.embedded.failures import ProviderFailed, Refusal
from gpubed.engines.embedded.goal import PROVIDER_PACKAGE, Goal
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import STACK_TYPE, State, urn_of
from gpubed.engines.embedded.values import Properties, changed_keys, keep_old
from gpubed.testbeds.driver import UNKNOWN_TEXT

_PROVIDER_TYPE = f"pulumi:providers:{PROVIDER_PACKAGE}"
# The provider of these types, `gpubed.resources`, returns all inputs unchanged from Check.
_UNCHECKED = f"{PROVIDER_PACKAGE}:dynamic/gpubed:"


class Verdict(NamedTuple):
    """The result of a comparison."""

    changed: bool
    replace: bool
    delete_first: bool
    why: tuple[str, ...]


class Registrar:
    """Carries out registrations from many threads."""

    def __init__(self, run: Run, olds: Sequence[State], config: Properties) -> None:
        self._run = run
        self._olds = list(olds)
        self._old = {state.urn: state for state in olds if not state.delete}
        self._config = config
        self._registered: set[str] = set()
        # Deleted because a dependency is replaced; the event is set once the deletion is done.
        self._condemned: dict[str, threading.Event] = {}
        self.states: dict[str, State] = {}
        self.root: State | None = None

    def register(self, goal: Goal) -> State:
        """Create, update, replace or keep the resource, and return its new state.

        Raises:
            Halted: The run is stopping, because of this resource or another.
        """
        new = goal.state
        parent = self.states.get(new.parent)
        if new.parent and not parent:
            why = f"{goal.name} has a parent that was not registered: {new.parent}"
            raise self._run.fail(UsageError(why))
        new.urn = urn_of(self._run.stack, self._run.project, new.parent, new.type, goal.name)
        inherited = (parent.protect, parent.retain_on_delete) if parent else (False, False)
        new.protect = inherited[0] if goal.protect is None else goal.protect
        new.retain_on_delete = (
            inherited[1] if goal.retain_on_delete is None else goal.retain_on_delete
        )
        old, condemned = self._claim(new.urn)
        if condemned:
            condemned.wait()
        if old and old.custom != new.custom:
            raise self._run.fail(Refusal("turning a resource into a component or back", goal.name))
        if new.custom:
            new.provider = self._provider_reference()
            self._custom(goal, old, new, recreate=condemned is not None)
        else:
            self._component(old, new)
        with self._run.lock:
            self.states[new.urn] = new
            if new.type == STACK_TYPE:
                self.root = new
        return new

    def leftovers(self) -> list[State]:
        """Return the old entries that the program did not register, and replaced ones."""
        return [state for state in self._olds if state.delete or state.urn not in self._registered]

    def _claim(self, urn: str) -> tuple[State | None, threading.Event | None]:
        with self._run.lock:
            self._run.check_open()
            if urn in self._registered:
                why = f"two resources have the URN {urn}"
                raise self._run.fail(GpubedError(why, "give one of them another name"))
            self._registered.add(urn)
            return self._old.get(urn), self._condemned.get(urn)

    def _provider_reference(self) -> str:
        urn = urn_of(self._run.stack, self._run.project, "", _PROVIDER_TYPE, "default")
        with self._run.lock:
            if urn not in self._registered:
                self._registered.add(urn)
                self.states[urn] = self._default_provider(urn)
        return f"{urn}::{self.states[urn].id}"

    def _default_provider(self, urn: str) -> State:
        old = self._old.get(urn)
        new = State(urn, _PROVIDER_TYPE, True, inputs=self._config, outputs=self._config)
        if old:
            new.id, new.created, new.modified = old.id, old.created, old.modified
        else:
            new.id = UNKNOWN_TEXT if self._run.preview else str(uuid.uuid4())
            new.created = new.modified = timestamp()
        # No step: it may change while steps wait, and Pulumi does not show it.
        self._run.journal.record(new, old, changed=not old or old.inputs != new.inputs)
        return new

    def _component(self, old: State | None, new: State) -> None:
        if old is None:
            steps.create(self._run, new)
        elif why := changed_keys(old.inputs, new.inputs):
            steps.update(self._run, old, new, why)
        else:
            steps.same(self._run, old, new)

    def _custom(self, goal: Goal, old: State | None, new: State, *, recreate: bool) -> None:
        run, raw = self._run, new.inputs
        if old and not old.taint:
            new.inputs = keep_old(raw, old.inputs, new.ignore_changes)
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
            # The provider is not asked: only the program can say what must be deleted first.
            self._replace(goal, old, Verdict(True, True, False, ("id",)))
        else:
            verdict = self._diff(old, new.inputs, new.ignore_changes)
            if verdict.replace or old.pending_replacement:
                self._replace(goal, old, verdict, raw)
            elif verdict.changed or old.init_errors:
                steps.update(run, old, new, verdict.why)
            else:
                steps.same(run, old, new)

    def _check(self, new: State, olds: Properties) -> None:
        with self._asking("check", new):
            new.inputs = self._run.provider.check(new.urn, olds, new.inputs)

    def _diff(self, old: State, inputs: Properties, ignored: list[str]) -> Verdict:
        with self._asking("diff", old):
            diff = self._run.provider.diff(old, inputs, ignored)
        why = changed_keys(old.inputs, inputs)
        changed = bool(why) if diff.changed is None else diff.changed
        return Verdict(
            changed,
            changed and bool(diff.replaces),
            diff.delete_before_replace,
            diff.replaces or (why if changed else ()),
        )

    @contextlib.contextmanager
    def _asking(self, op: str, state: State) -> Iterator[None]:
        try:
            yield
        except ProviderFailed as failure:
            self._run.reporter.log("error", str(failure), state.urn)
            raise self._run.refuse_step(op, state, failure.reason) from failure

    def _replace(
        self, goal: Goal, old: State, verdict: Verdict, raw: Properties | None = None
    ) -> None:
        run, new = self._run, goal.state
        if old.protect and new.protect:
            why = "it is protected; remove `protect` from the program first"
            raise run.refuse_step("replace", new, why)
        if raw is not None:
            # Defaults that Check carried over from the old resource no longer hold.
            new.inputs = raw
            self._check(new, {})
        first = goal.delete_before_replace
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
            victims = self._condemn(old)
        try:
            for victim in reversed(victims):
                steps.delete(self._run, victim, "delete-replaced", recreate=True)
            if not old.pending_replacement:
                steps.delete(self._run, old, "delete-replaced", recreate=True)
        finally:
            for victim in victims:
                self._condemned[victim.urn].set()

    def _condemn(self, old: State) -> list[State]:
        taken = self._registered | set(self._condemned)
        victims = dependents.of_replacement(
            old,
            [state for state in self._olds if not state.delete],
            taken - {old.urn},
            lambda state, inputs: self._diff(state, inputs, state.ignore_changes).replace,
        )
        for victim in victims:
            if victim.protect:
                why = f"it is protected, and {old.name} that it needs is replaced"
                raise self._run.refuse_step("replace", victim, why)
        self._condemned.update({victim.urn: threading.Event() for victim in victims})
        return victims
