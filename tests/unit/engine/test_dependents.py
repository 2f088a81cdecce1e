"""Order of deletions, and what goes along with a delete-first replacement."""

from gpubed.engines.embedded.dependents import Edges, layers, of_replacement
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import UNKNOWN


def make(name, needs=(), parent="", custom=True, **fields):
    state = State(f"urn:pulumi:s::p::t:t:T::{name}", "t:t:T", custom, **fields)
    state.dependencies = [need.urn for need in needs]
    state.parent = parent and parent.urn
    return state


def names(states):
    return sorted(state.name for state in states)


def test_dependents_go_first_and_independent_ones_together():
    root = make("root", custom=False)
    a, b = make("a", parent=root), make("b", parent=root)
    c = make("c", [a, b], parent=root)
    d = make("d", [c], parent=root)
    everything = [root, a, b, c, d]
    assert [names(layer) for layer in layers(everything, everything)] == [
        ["d"],
        ["c"],
        ["a", "b"],
        ["root"],
    ]
    assert [names(layer) for layer in layers([a, c], everything)] == [["c"], ["a"]]


def test_depending_on_a_component_means_depending_on_its_children():
    group = make("group", custom=False)
    child = make("child", parent=group)
    user = make("user", [group])
    assert names(Edges([group, child, user]).of(user)) == ["child", "group"]
    assert [names(layer) for layer in layers([child, user], [group, child, user])] == [
        ["user"],
        ["child"],
    ]


def test_entries_with_one_urn_are_told_apart():
    new, old = make("a"), make("a", delete=True)
    user = make("user", [new])
    assert [names(layer) for layer in layers([old], [new, user, old])] == [["a"]]
    assert Edges([new, user, old]).of(user) == [new]


def test_foundations_are_found_however_deep():
    a = make("a")
    b = make("b", [a])
    c = make("c", [b])
    assert Edges([a, b, c]).all_of([c]) == {id(a), id(b)}


def test_a_replacement_takes_those_whose_provider_says_so():
    root, asked = make("root"), []
    b = make("b", [root], inputs={"x": 1, "y": 2}, property_dependencies={"x": [root.urn]})
    c = make("c", [b], inputs={"z": 3}, property_dependencies={"z": [b.urn]})
    loose = make("loose", [root], inputs={"q": 1}, property_dependencies={"q": []})

    def says(state, inputs):
        asked.append((state.name, inputs))
        return True

    assert of_replacement(root, [root, b, c, loose], set(), says) == [b, c]
    assert asked == [("b", {"x": UNKNOWN, "y": 2}), ("c", {"z": UNKNOWN})]
    # Once b stays, c is not affected; what the program registered before is not asked.
    assert of_replacement(root, [root, b, c], set(), lambda *_: False) == []
    assert of_replacement(root, [root, b, c], {b.urn}, says) == []
