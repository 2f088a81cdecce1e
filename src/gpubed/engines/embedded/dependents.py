"""Groups resources by dependency: dependents of a replacement, layers of a deletion.

All lists of states have dependencies before dependents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import UNKNOWN, Properties


def of_replacement(
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
        inputs = _with_unknowns(state, condemned)
        if inputs and state.custom and must_replace(state, inputs):
            condemned.add(state.urn)
            chosen.append(state)
    return chosen


def _with_unknowns(state: State, condemned: set[str]) -> Properties | None:
    """Return the inputs as the replacement would make them; None if it does not affect them."""
    affected = {
        key for key, urns in state.property_dependencies.items() if condemned.intersection(urns)
    }.intersection(state.inputs)
    if not affected:
        return None
    return {key: UNKNOWN if key in affected else value for key, value in state.inputs.items()}


def layers(doomed: Iterable[State], states: Sequence[State]) -> list[list[State]]:
    """Order deletions in layers; the states of a layer may be deleted in parallel."""
    edges = Edges(states)
    wanted = {id(state) for state in doomed}
    depth: dict[int, int] = {}
    order: list[list[State]] = []
    for state in states:
        if id(state) not in wanted:
            continue
        below = [depth[id(need)] for need in edges.of(state) if id(need) in depth]
        depth[id(state)] = 1 + max(below, default=-1)
        order.extend([] for _ in range(depth[id(state)] + 1 - len(order)))
        order[depth[id(state)]].append(state)
    return order[::-1]


class Edges:
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
        found = self._listed(state.parent, state)
        for urn in set(state.needs()):
            for need in self._listed(urn, state):
                found.append(need)
                if not need.custom:
                    found += self._descendants(need, state)
        return found

    def all_of(self, states: Iterable[State]) -> set[int]:
        """Return the `id()` of every direct or indirect dependency of the states."""
        found: set[int] = set()
        queue = list(states)
        while queue:
            for need in self.of(queue.pop()):
                if id(need) not in found:
                    found.add(id(need))
                    queue.append(need)
        return found

    def _listed(self, urn: str, before: State) -> list[State]:
        limit = self._index[id(before)]
        return [s for s in self._by_urn.get(urn, []) if self._index[id(s)] < limit]

    def _descendants(self, component: State, before: State) -> list[State]:
        found, queue = [], [component]
        limit = self._index[id(before)]
        while queue:
            for child in self._children.get(queue.pop().urn, []):
                if self._index[id(child)] < limit:
                    found.append(child)
                    queue.append(child)
        return found
