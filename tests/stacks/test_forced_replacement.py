"""What is replaced although nothing changed: tainted in the state, or asked for by its URN."""

import json

import pytest

from gpubed.core.errors import UsageError

pytestmark = pytest.mark.quick

A = {"name": "a", "props": {"size": 1}}
B = {"name": "b", "props": {"size": "@a.ip"}}
FIRST = {"opts": {"delete_before_replace": True}}


def urn(scenes, name):
    return next(s["urn"] for s in scenes.state() if s["urn"].endswith(f"::{name}"))


def taint(scenes, name):
    """Marks a resource the way `pulumi state taint` does."""
    document = json.loads(scenes.state_file.read_text())
    for resource in document["checkpoint"]["latest"]["resources"]:
        if resource["urn"].endswith(f"::{name}"):
            resource["taint"] = True
    document |= {"version": 4, "features": ["taint"]}
    scenes.state_file.write_text(json.dumps(document))


def head(scenes):
    document = json.loads(scenes.state_file.read_text())
    return document["version"], document.get("features")


def test_a_tainted_resource_is_replaced_once(scenes):
    scenes.up(A, B)
    taint(scenes, "a")
    scenes.set(A, B)
    planned = scenes.engine().preview()
    assert planned.changes["replace"] == 1
    assert scenes.up(A, B).changes["replace"] == 1
    assert scenes.calls("create", "delete") == ["create a", "delete a"]
    assert head(scenes) == (3, None), "nothing is tainted any more"
    assert scenes.up(A, B).changes == {"same": 3}


def test_nobody_asks_the_provider_so_only_the_program_says_what_goes_first(scenes):
    first = {"name": "a", "props": {"first": True}}
    scenes.up(first)
    taint(scenes, "a")
    scenes.up(first)
    assert scenes.calls("diff") == []
    assert scenes.calls("create", "delete") == ["create a", "delete a"]
    taint(scenes, "a")
    scenes.up({**first, **FIRST})
    assert scenes.calls("create", "delete") == ["delete a", "create a"]


def test_a_urn_says_it_too_and_is_forgotten_after_the_run(scenes):
    scenes.up({**A, **FIRST}, B)
    scenes.set({**A, **FIRST}, B)
    wanted = [urn(scenes, "a")]
    planned = scenes.engine().preview(replace=wanted)
    assert {s.why for s in planned.steps if s.op == "replace"} == {("id",)}
    done = scenes.engine().up(replace=wanted)
    assert done.changes["replace"] == 1
    assert scenes.calls("delete", "create") == ["delete a", "create a"]
    assert scenes.up({**A, **FIRST}, B).changes == {"same": 3}


def test_what_the_stack_does_not_have_cannot_be_replaced(scenes):
    scenes.up(A)
    with pytest.raises(UsageError, match="no resource urn:nowhere"):
        scenes.engine().up(replace=["urn:nowhere"])


def test_a_refresh_keeps_the_mark(scenes):
    scenes.up(A)
    taint(scenes, "a")
    scenes.set(A, orders=["drift:a"])
    scenes.engine().refresh()
    assert head(scenes) == (4, ["taint"])
    assert scenes.up(A).changes["replace"] == 1
