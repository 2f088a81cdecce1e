"""Pulumi's operations on one resource, deletions of many in order, and the refresh.

Each step is a provider call between two entries in the journal. All lists of states have
dependencies before dependents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from gpubed.engines.embedded.checkpoint import Pending, timestamp
from gpubed.engines.embedded.events import ProviderFailed, ProviderLost
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import UNKNOWN, Properties, Secret, changed_keys

# A change of these fields is written to the state even if the resource itself is unchanged.
_COMPARED = (
    *("provider", "parent", "taint", "retain_on_delete", "inputs", "outputs"),
    *("property_dependencies", "additional_secret_outputs", "pending_replacement"),
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
            new.outputs = _guarded(new, outputs)
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
            new.outputs, new.modified = _guarded(new, outputs), timestamp()
        with run.journal.atomic():
            run.journal.settle(operation)
            run.journal.record(new, old)


def replaced(run: Run, new: State, why: tuple[str, ...] = ()) -> None:
    """Report a replacement as a whole; its halves are steps of their own."""
    with run.step("replace", new, why):
        pass


def delete(run: Run, old: State, *, recreate: bool = False) -> None:
    """Delete a resource; `recreate` keeps its entry, marked, until the replacement exists."""
    op = "delete-replaced" if old.delete or recreate else "delete"
    op = "remove-pending-replace" if op == "delete" and old.pending_replacement else op
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
    """Delete resources, dependents first."""
    edges, wanted = _Edges(states), {id(state) for state in doomed}
    depth: dict[int, int] = {}
    layers: list[list[State]] = []  # the states of a layer may be deleted in parallel
    for state in states:
        if id(state) in wanted:
            below = [depth[id(need)] for need in edges.of(state) if id(need) in depth]
            depth[id(state)] = 1 + max(below, default=-1)
            layers.extend([] for _ in range(depth[id(state)] + 1 - len(layers)))
            layers[depth[id(state)]].append(state)
    for layer in reversed(layers):
        if run.stopping:
            break
        run.each(layer, lambda state: delete(run, state))


class _Edges:
    """The dependencies of each resource, among entries that may share URNs."""

    def __init__(self, states: Sequence[State]) -> None:
        self._index = {id(state): index for index, state in enumerate(states)}
        self._by_urn: dict[str, list[State]] = {}
        self._children: dict[str, list[State]] = {}
        for state in states:
            self._by_urn.setdefault(state.urn, []).append(state)
            self._children.setdefault(state.parent, []).append(state)

    def of(self, state: State) -> list[State]:
        """Return the direct dependencies, parent included.

        A dependency on a component includes the component's earlier children.
        """
        limit = self._index[id(state)]
        needs = [need for urn in {*state.needs()} for need in self._by_urn.get(urn, [])]
        queue, found = [need for need in needs if not need.custom], needs
        while queue:
            children = self._children.get(queue.pop().urn, [])
            found = found + children
            queue += children
        found = [*self._by_urn.get(state.parent, []), *found]
        return [need for need in found if self._index[id(need)] < limit]


def dependents_of_replacement(
    root: State,
    olds: Sequence[State],
    registered: set[str],
    must_replace: Callable[[State, Properties], bool],
) -> list[State]:
    """Return the resources that must be deleted before `root`, in order of creation.

    A resource that the program has registered already no longer depends on the root, whatever the
    old state says.
    """
    reachable, condemned = {root.urn}, {root.urn}
    chosen: list[State] = []
    after = next(index for index, state in enumerate(olds) if state is root)
    for state in olds[after + 1 :]:
        if state.urn in registered or not reachable.intersection(state.needs()):
            continue
        reachable.add(state.urn)
        affected = {
            key for key, urns in state.property_dependencies.items() if condemned.intersection(urns)
        }.intersection(state.inputs)
        inputs = {**state.inputs, **dict.fromkeys(affected, UNKNOWN)}
        if affected and state.custom and must_replace(state, inputs):
            condemned.add(state.urn)
            chosen.append(state)
    return chosen


@contextlib.contextmanager
def _pending(run: Run, state: State, type_: str) -> Iterator[Pending]:
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


def _guarded(state: State, outputs: Properties) -> Properties:
    """Mark outputs as secret that are declared secret, or whose input of the same name is."""
    inputs = {key for key, value in state.inputs.items() if isinstance(value, Secret)}
    secret = inputs | set(state.additional_secret_outputs)
    return {
        key: Secret(value) if key in secret and not isinstance(value, Secret) else value
        for key, value in outputs.items()
    }


def refresh(run: Run, states: Sequence[State]) -> None:
    """Read all resources in parallel, and change only the state.

    Resources that have gone are dropped, with the references to them; their children move up.
    """
    gone: set[int] = set()

    def one(state: State) -> None:
        if _read(run, state):
            gone.add(id(state))

    run.each(states, one)
    parents = {state.urn: state.parent for state in states}
    listed: set[str] = set()
    with run.journal.atomic():
        for state in states:
            if id(state) in gone:
                run.journal.record(None, state)
                continue
            if _prune(state, listed, parents):
                run.journal.touch(state)
            listed.add(state.urn)


def _read(run: Run, state: State) -> bool:
    """Correct the state of a resource; return whether the resource has gone."""
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
        outputs, wanted = _guarded(state, outputs), state.inputs
        why = (*changed_keys(state.outputs, outputs), *changed_keys(wanted, inputs))
        if why or found != state.id:
            state.modified = timestamp()
        state.id, state.outputs, state.inputs = found, outputs, inputs
        step.why = tuple(dict.fromkeys(why))
        if why:
            run.journal.touch(state)
            # A read may differ from the state in ways that need no update.
            drifted = run.provider.diff(state, wanted).changed
            step.counts_as = "same" if drifted is False else "update"
        return False


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
