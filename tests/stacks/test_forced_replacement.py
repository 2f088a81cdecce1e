"""What `pulumi state taint` has marked is replaced although nothing changed."""

import json

import pytest

pytestmark = pytest.mark.quick

A = {"name": "a", "props": {"size": 1}}
B = {"name": "b", "props": {"size": "@a.ip"}}
FIRST = {"opts": {"delete_before_replace": True}}


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


def test_a_refresh_keeps_the_mark(scenes):
    scenes.up(A)
    taint(scenes, "a")
    scenes.set(A, orders=["drift:a"])
    scenes.engine().refresh()
    assert head(scenes) == (4, ["taint"])
    assert scenes.up(A).changes["replace"] == 1
