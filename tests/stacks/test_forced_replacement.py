"""What is replaced although nothing changed: tainted in the state, or asked for by its URN."""

import json

import pytest

from gpubed.core.errors import UsageError

A = {"name": "a", "props": {"size": 1}}
B = {"name": "b", "props": {"size": "@a.ip"}}
FIRST = {"opts": {"delete_before_replace": True}}


def urn(theatre, name):
    return next(s["urn"] for s in theatre.state() if s["urn"].endswith(f"::{name}"))


def taint(theatre, name):
    """Marks a resource the way `pulumi state taint` does."""
    document = json.loads(theatre.state_file.read_text())
    for resource in document["checkpoint"]["latest"]["resources"]:
        if resource["urn"].endswith(f"::{name}"):
            resource["taint"] = True
    document |= {"version": 4, "features": ["taint"]}
    theatre.state_file.write_text(json.dumps(document))


def head(theatre):
    document = json.loads(theatre.state_file.read_text())
    return document["version"], document.get("features")


def test_a_tainted_resource_is_replaced_once(theatre):
    theatre.up(A, B)
    taint(theatre, "a")
    theatre.set(A, B)
    planned = theatre.engine().preview()
    assert planned.changes["replace"] == 1
    assert theatre.up(A, B).changes["replace"] == 1
    assert theatre.calls("create", "delete") == ["create a", "delete a"]
    assert head(theatre) == (3, None), "nothing is tainted any more"
    assert theatre.up(A, B).changes == {"same": 3}


def test_nobody_asks_the_provider_so_only_the_program_says_what_goes_first(theatre):
    first = {"name": "a", "props": {"first": True}}
    theatre.up(first)
    taint(theatre, "a")
    theatre.up(first)
    assert theatre.calls("diff") == []
    assert theatre.calls("create", "delete") == ["create a", "delete a"]
    taint(theatre, "a")
    theatre.up({**first, **FIRST})
    assert theatre.calls("create", "delete") == ["delete a", "create a"]


def test_a_urn_says_it_too_and_is_forgotten_after_the_run(theatre):
    theatre.up({**A, **FIRST}, B)
    theatre.set({**A, **FIRST}, B)
    wanted = [urn(theatre, "a")]
    planned = theatre.engine().preview(replace=wanted)
    assert {s.why for s in planned.steps if s.op == "replace"} == {("id",)}
    done = theatre.engine().up(replace=wanted)
    assert done.changes["replace"] == 1
    assert theatre.calls("delete", "create") == ["delete a", "create a"]
    assert theatre.up({**A, **FIRST}, B).changes == {"same": 3}


def test_what_the_stack_does_not_have_cannot_be_replaced(theatre):
    theatre.up(A)
    with pytest.raises(UsageError, match="no resource urn:nowhere"):
        theatre.engine().up(replace=["urn:nowhere"])


def test_a_refresh_keeps_the_mark(theatre):
    theatre.up(A)
    taint(theatre, "a")
    theatre.set(A, orders=["drift:a"])
    theatre.engine().refresh()
    assert head(theatre) == (4, ["taint"])
    assert theatre.up(A).changes["replace"] == 1
