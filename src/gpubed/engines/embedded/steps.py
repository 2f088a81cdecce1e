"""Pulumi's operations on one resource, and deletions of many.

Each step is a provider call between two entries in the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gpubed.engines.embedded import dependents
from gpubed.engines.embedded.checkpoint import Operation, timestamp
from gpubed.engines.embedded.failures import ProviderFailed, ProviderLost
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import Properties, Secret

# Fields that are written for an otherwise unchanged resource if they alone change.
_COMPARED = (
    *("provider", "parent", "protect", "taint", "retain_on_delete", "inputs", "outputs"),
    *("property_dependencies", "additional_secret_outputs", "ignore_changes"),
    "pending_replacement",
)


def same(run: Run, old: State, new: State) -> None:
    """Keep a resource and its outputs; its options may change."""
    with run.step("same", new):
        new.id, new.outputs = old.id, old.outputs
        new.created, new.modified = old.created, old.modified
        changed = set(old.dependencies) != set(new.dependencies) or any(
            getattr(old, field) != getattr(new, field) for field in _COMPARED
        )
        run.journal.record(new, old, changed=changed)


def create(
    run: Run,
    new: State,
    op: str = "create",
    *,
    old: State | None = None,
    keep_old: bool = False,
    why: tuple[str, ...] = (),
) -> None:
    """Create a resource; `keep_old` leaves the replaced one for deletion at the end of the run."""
    with run.step(op, new, why):
        operation = None
        if run.preview:
            new.outputs = dict(new.inputs)
        elif new.custom:
            with _pending(run, new, "creating") as operation:
                new.id, outputs = run.provider.create(new)
            new.outputs = guarded(new, outputs)
        new.created = new.modified = timestamp()
        # After a crash, either both the new entry and the old one's flag are on disk, or neither.
        with run.journal.atomic():
            run.journal.settle(operation)
            if old and keep_old:
                old.delete = True
                run.journal.touch(old)
            run.journal.record(new, None if keep_old else old)


def update(run: Run, old: State, new: State, why: tuple[str, ...]) -> None:
    """Change a resource in place."""
    with run.step("update", new, why):
        operation = None
        new.id, new.created, new.modified = old.id, old.created, old.modified
        if run.preview:
            new.outputs = dict(new.inputs)
        elif new.custom:
            with _pending(run, new, "updating") as operation:
                outputs = run.provider.update(old, new)
            new.outputs, new.modified = guarded(new, outputs), timestamp()
        with run.journal.atomic():
            run.journal.settle(operation)
            run.journal.record(new, old)


def replaced(run: Run, new: State, why: tuple[str, ...] = ()) -> None:
    """Report a replacement as a whole; its halves are steps of their own."""
    with run.step("replace", new, why):
        pass


def delete(run: Run, old: State, op: str = "delete", *, recreate: bool = False) -> None:
    """Delete a resource; `recreate` keeps its entry, marked, until the replacement exists."""
    with run.step(op, old):
        operation = None
        kept = old.retain_on_delete or old.pending_replacement
        if not run.preview and old.custom and not old.is_provider and not kept:
            with _pending(run, old, "deleting") as operation:
                run.provider.delete(old)
        with run.journal.atomic():
            run.journal.settle(operation)
            if recreate:
                old.pending_replacement = True
                run.journal.touch(old)
            else:
                run.journal.record(None, old)


def delete_all(run: Run, states: Sequence[State], doomed: list[State]) -> None:
    """Delete resources, dependents first, except protected ones and their dependencies."""
    kept = [state for state in doomed if state.protect and not state.delete]
    if kept:
        foundations = dependents.Edges(states).all_of(kept) | set(map(id, kept))
        doomed = [state for state in doomed if id(state) not in foundations]
    for layer in dependents.layers(doomed, states):
        if run.stopping:
            break
        run.each(layer, lambda state: delete(run, state, _operation(state)))
    for state in kept:
        run.refuse_step(
            "delete", state, "it is protected; remove `protect` from the program and run `up` first"
        )


def _operation(state: State) -> str:
    if state.delete:
        return "delete-replaced"
    return "remove-pending-replace" if state.pending_replacement else "delete"


@contextlib.contextmanager
def _pending(run: Run, state: State, type_: str) -> Iterator[Operation]:
    """Begin a pending operation, and settle it if the provider fails.

    After a success it stays, to be settled together with the result, and after the loss of a
    provider, whose work may exist without a state that names it.
    """
    operation = run.journal.begin(state, type_)
    try:
        yield operation
    except ProviderFailed as failure:
        if not isinstance(failure, ProviderLost):
            run.journal.settle(operation)
        raise


def guarded(state: State, outputs: Properties) -> Properties:
    """Return the outputs, with those secret that are declared so or whose namesake input is."""
    inputs = {key for key, value in state.inputs.items() if isinstance(value, Secret)}
    secret = inputs | set(state.additional_secret_outputs)
    return {
        key: Secret(value) if key in secret and not isinstance(value, Secret) else value
        for key, value in outputs.items()
    }
