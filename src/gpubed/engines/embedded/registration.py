"""Decides what becomes of each resource the program registers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpubed.core.errors import GpubedError, UsageError
from gpubed.engines.embedded import dependents, property_paths, urn
from gpubed.engines.embedded.checkpoint import timestamp
from gpubed.engines.embedded.failures import ProviderFailed, Refusal
from gpubed.engines.embedded.goal import PROVIDER_PACKAGE, Goal, ReadGoal
from gpubed.engines.embedded.run import Halted, Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.steps import Steps
from gpubed.engines.embedded.values import Properties, changed_keys
from gpubed.testbeds.driver import UNKNOWN_TEXT

_PROVIDER_TYPE = f"pulumi:providers:{PROVIDER_PACKAGE}"
# Types whose provider, that of `gpubed.resources`, has no `check` of its own: it takes what it is
# given.
_UNCHECKED = f"{PROVIDER_PACKAGE}:dynamic/gpubed:"


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to."""

    changed: bool
    replace: bool
    delete_first: bool
    why: tuple[str, ...]


class Registrar:
    """Takes registrations from many threads and carries each one out.

    Args:
        run: The operation.
        steps: Who carries out steps.
        olds: The state before the run.
        config: The stack's configuration, which the default provider records.
        forced: URNs of what is replaced whether it changed or not.
    """

    def __init__(
        self,
        run: Run,
        steps: Steps,
        olds: Sequence[State],
        config: Properties,
        forced: Collection[str] = (),
    ) -> None:
        self._run = run
        self._steps = steps
        self._olds = list(olds)
        self._old = {state.urn: state for state in olds if not state.delete}
        self._config = config
        self._forced = {*forced, *(state.urn for state in olds if state.taint)}
        self._registered: set[str] = set()
        # Deleted because something they depend on is replaced; set once that is done.
        self._condemned: dict[str, threading.Event] = {}
        self.states: dict[str, State] = {}
        self.root: State | None = None

    def register(self, goal: Goal) -> State:
        """Creates, updates, replaces or keeps the resource, and returns its new state.

        Raises:
            Halted: The run is stopping, because of this resource or another.
        """
        name = self._urn(goal)
        old, condemned = self._claim(name)
        new = self._new_state(name, goal)
        if condemned:
            condemned.wait()
        if goal.custom:
            new.provider = self._provider_reference()
            self._custom(goal, old, new, recreate=condemned is not None)
        else:
            self._component(old, new)
        with self._run.lock:
            self.states[name] = new
            if goal.type == urn.STACK_TYPE:
                self.root = new
        return new

    def read(self, goal: ReadGoal) -> State:
        """Reads a resource that others manage; one of that name that was ours is given up.

        Raises:
            Halted: The run is stopping, because of this resource or another.
        """
        name = self._urn(goal)
        old, condemned = self._claim(name)
        new = State(
            urn=name,
            type=goal.type,
            custom=True,
            id=goal.id,
            inputs=goal.inputs,
            parent=goal.parent,
            provider=self._provider_reference(),
            dependencies=goal.dependencies,
            external=True,
            additional_secret_outputs=goal.additional_secret_outputs,
            source_position=goal.source_position,
        )
        if condemned:
            condemned.wait()
        # With the same id it is the same thing: it is only no longer ours to manage.
        ours = old and not old.external and not condemned and old.id != new.id
        self._steps.read(new, old, replacing=bool(ours))
        if ours:
            self._steps.replaced(new, ())
        with self._run.lock:
            self.states[name] = new
        return new

    def leftovers(self) -> list[State]:
        """Returns the old entries that the program did not register, and replaced ones."""
        return [state for state in self._olds if state.delete or state.urn not in self._registered]

    def _urn(self, goal: Goal | ReadGoal) -> str:
        if goal.parent and goal.parent not in self.states:
            error = UsageError(f"{goal.name} has a parent that was not registered: {goal.parent}")
            raise self._run.fail(error)
        return urn.build(self._run.stack, self._run.project, goal.parent, goal.type, goal.name)

    def _claim(self, name: str) -> tuple[State | None, threading.Event | None]:
        with self._run.lock:
            self._run.check_open()
            if name in self._registered:
                raise self._run.fail(
                    GpubedError(
                        f"two resources have the URN {name}", "give one of them another name"
                    )
                )
            self._registered.add(name)
            return self._old.get(name), self._condemned.get(name)

    def _new_state(self, name: str, goal: Goal) -> State:
        parent = self.states.get(goal.parent)
        protect, retain = goal.protect, goal.retain_on_delete
        if parent:
            protect = parent.protect if protect is None else protect
            retain = parent.retain_on_delete if retain is None else retain
        return State(
            urn=name,
            type=goal.type,
            custom=goal.custom,
            inputs=goal.inputs,
            parent=goal.parent,
            dependencies=goal.dependencies,
            property_dependencies=goal.property_dependencies,
            protect=bool(protect),
            retain_on_delete=bool(retain),
            ignore_changes=goal.ignore_changes,
            additional_secret_outputs=goal.additional_secret_outputs,
            source_position=goal.source_position,
        )

    def _provider_reference(self) -> str:
        """Registers the default provider when it is first needed."""
        name = urn.build(self._run.stack, self._run.project, "", _PROVIDER_TYPE, "default")
        with self._run.lock:
            if name not in self._registered:
                self._registered.add(name)
                self.states[name] = self._default_provider(name)
        return f"{name}::{self.states[name].id}"

    def _default_provider(self, name: str) -> State:
        old = self._old.get(name)
        new = State(name, _PROVIDER_TYPE, True, inputs=self._config, outputs=self._config)
        fresh = UNKNOWN_TEXT if self._run.preview else str(uuid.uuid4())
        new.id = old.id if old else fresh
        new.created = old.created if old else timestamp()
        new.modified = old.modified if old else timestamp()
        # No step: providers may change while steps wait, and nobody is told about them.
        self._run.journal.record(new, old, changed=not old or old.inputs != new.inputs)
        return new

    def _component(self, old: State | None, new: State) -> None:
        if old and old.custom:
            raise self._run.fail(Refusal("turning a resource into a component", new.name))
        why = changed_keys(old.inputs, new.inputs) if old else ()
        if old is None:
            self._steps.create(new)
        elif why:
            self._steps.update(old, new, [], why)
        else:
            self._steps.same(old, new)

    def _custom(self, goal: Goal, old: State | None, new: State, *, recreate: bool) -> None:
        if old and not old.custom:
            raise self._run.fail(Refusal("turning a component into a resource", new.name))
        forced = new.urn in self._forced
        fresh = old is None or recreate or old.external or forced
        if old and not forced:
            new.inputs = property_paths.keep_old(goal.inputs, old.inputs, goal.ignore_changes)
        # Of thousands of new nodes a preview would only hear what it has said.
        if not (self._run.preview and old is None and new.type.startswith(_UNCHECKED)):
            self._check(new, {} if fresh or old is None else old.inputs)
        if old is None:
            self._steps.create(new)
        elif recreate:
            self._steps.replaced(new, ())
            self._steps.create(new, "create-replacement", old=old)
        elif old.external:
            self._steps.create(new, "create-replacement", old=old, keep_old=True)
            self._steps.replaced(new, ())
        else:
            self._compare(goal, old, new)

    def _check(self, new: State, olds: Properties) -> None:
        try:
            new.inputs = self._run.provider.check(new.urn, olds, new.inputs)
        except ProviderFailed as failure:
            self._run.reporter.log("error", str(failure), new.urn)
            self._run.refuse_step("check", new, failure.reason)
            raise Halted from failure

    def _compare(self, goal: Goal, old: State, new: State) -> None:
        if new.urn in self._forced:
            # Nobody asks the provider: only the program can say what must go first.
            verdict = Verdict(changed=True, replace=True, delete_first=False, why=("id",))
        else:
            verdict = self._diff(old, new.inputs, goal.ignore_changes)
        if verdict.replace or old.pending_replacement:
            self._replace(goal, old, new, verdict)
        elif verdict.changed or old.init_errors:
            self._steps.update(old, new, goal.ignore_changes, verdict.why)
        else:
            self._steps.same(old, new)

    def _diff(self, old: State, inputs: Properties, ignored: list[str]) -> Verdict:
        try:
            diff = self._run.provider.diff(old, inputs, ignored)
        except ProviderFailed as failure:
            self._run.reporter.log("error", str(failure), old.urn)
            self._run.refuse_step("diff", old, failure.reason)
            raise Halted from failure
        why = changed_keys(old.inputs, inputs)
        changed = bool(why) if diff.changed is None else diff.changed
        return Verdict(
            changed,
            changed and bool(diff.replaces),
            diff.delete_before_replace,
            diff.replaces or (why if changed else ()),
        )

    def _replace(self, goal: Goal, old: State, new: State, verdict: Verdict) -> None:
        if old.protect and new.protect:
            self._run.refuse_step(
                "replace", new, "it is protected; remove `protect` from the program first"
            )
            raise Halted
        if new.urn not in self._forced:
            # Defaults that Check carried over from the old resource no longer hold.
            new.inputs = goal.inputs
            self._check(new, {})
        delete_first = verdict.delete_first
        if goal.delete_before_replace is not None:
            delete_first = goal.delete_before_replace
        if delete_first:
            self._delete_with_dependents(old)
            self._steps.replaced(new, verdict.why)
            self._steps.create(new, "create-replacement", old=old, why=verdict.why)
        else:
            keep_old = not old.pending_replacement
            self._steps.create(
                new, "create-replacement", old=old, keep_old=keep_old, why=verdict.why
            )
            self._steps.replaced(new, verdict.why)

    def _delete_with_dependents(self, old: State) -> None:
        with self._run.lock:
            victims = self._condemn(old)
        try:
            for victim in reversed(victims):
                self._steps.delete(victim, "delete-replaced", recreate=True)
            if not old.pending_replacement:
                self._steps.delete(old, "delete-replaced", recreate=True)
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
                self._run.refuse_step(
                    "replace", victim, f"it is protected, and {old.name} that it needs is replaced"
                )
                raise Halted
        self._condemned.update({victim.urn: threading.Event() for victim in victims})
        return victims
