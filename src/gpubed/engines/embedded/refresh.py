"""Refresh: reads every resource from its provider, and corrects the state."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.engines.embedded.checkpoint import timestamp
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.steps import guarded
from gpubed.engines.embedded.values import Properties, changed_keys


def refresh(run: Run, states: Sequence[State]) -> None:
    """Read all resources in parallel, and change only the state."""
    gone: set[int] = set()

    def one(state: State) -> None:
        if _read_step(run, state):
            gone.add(id(state))

    run.each(states, one)
    with run.journal.atomic():
        _repair(run, states, gone)


def _read_step(run: Run, state: State) -> bool:
    with run.step("refresh", state) as step:
        step.counts_as = "same"
        if not state.custom or state.is_provider or state.pending_replacement:
            return False
        operation = run.journal.begin(state, "reading")
        try:
            found, outputs, inputs = run.provider.read(state)
        finally:
            run.journal.settle(operation)
        if not found:
            step.counts_as, step.message = "delete", "it no longer exists"
            return True
        wanted = state.inputs
        step.why = _update(state, found, guarded(state, outputs), inputs)
        if step.why:
            run.journal.touch(state)
            # A read may differ from the state in ways that need no update.
            drifted = run.provider.diff(state, wanted, state.ignore_changes).changed
            step.counts_as = "same" if drifted is False else "update"
        return False


def _update(
    state: State, found: str, outputs: Properties, inputs: Properties | None
) -> tuple[str, ...]:
    inputs = state.inputs if inputs is None else inputs
    why = (*changed_keys(state.outputs, outputs), *changed_keys(state.inputs, inputs))
    if why or found != state.id:
        state.modified = timestamp()
    state.id, state.outputs, state.inputs = found, outputs, inputs
    state.init_errors = []
    return tuple(dict.fromkeys(why))


def _repair(run: Run, states: Sequence[State], gone: set[int]) -> None:
    """Drop resources that have gone, and references to them; their children move up."""
    parents = {state.urn: state.parent for state in states}
    listed: set[str] = set()
    for state in states:
        if id(state) in gone:
            run.journal.record(None, state)
            continue
        if _prune(state, listed, parents):
            run.journal.touch(state)
        listed.add(state.urn)


def _prune(state: State, listed: set[str], parents: dict[str, str]) -> bool:
    before = (state.parent, list(state.needs()))
    while state.parent and state.parent not in listed:
        state.parent = parents.get(state.parent, "")
    state.dependencies = [urn for urn in state.dependencies if urn in listed]
    kept = {
        key: [urn for urn in urns if urn in listed]
        for key, urns in state.property_dependencies.items()
    }
    # Keys that never had a dependency keep their empty list, as Pulumi writes them.
    state.property_dependencies = {
        key: urns for key, urns in kept.items() if urns or not state.property_dependencies[key]
    }
    return before != (state.parent, list(state.needs()))
