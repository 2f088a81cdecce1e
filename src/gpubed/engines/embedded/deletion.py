"""Deletions: what the program no longer wants, or everything."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.engines.embedded import dependents
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.steps import Steps


def delete(run: Run, steps: Steps, states: Sequence[State], doomed: list[State]) -> None:
    """Deletes resources, dependents first; protected ones and their foundations stay.

    Args:
        run: The operation.
        steps: Who carries the deletions out.
        states: All entries, dependencies before dependents.
        doomed: The entries to delete.
    """
    kept = [state for state in doomed if state.protect and not state.delete]
    if kept:
        foundations = dependents.Edges(states).all_of(kept) | set(map(id, kept))
        doomed = [state for state in doomed if id(state) not in foundations]
    for layer in dependents.layers(doomed, states):
        if run.stopping:
            break
        run.each(layer, lambda state: steps.delete(state, _operation(state)))
    for state in kept:
        run.refuse_step(
            "delete", state, "it is protected; remove `protect` from the program and run `up` first"
        )


def _operation(state: State) -> str:
    if state.delete:
        return "discard-replaced" if state.external else "delete-replaced"
    if state.pending_replacement:
        return "remove-pending-replace"
    return "discard" if state.external else "delete"
