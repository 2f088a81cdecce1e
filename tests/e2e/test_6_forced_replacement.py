"""`pulumi up --replace` and `pulumi state taint`: whatever is replaced is there afterwards.

Nobody asks the provider about a forced replacement, so that the order is the program's.
"""

import json

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

FILE = "/shared/results.txt"
NODES = {"node-0", "node-1"}


def taint(cluster, name):
    """Mark a resource the way `pulumi state taint` does."""
    (path,) = (cluster.root / ".gpubed").rglob(f"stacks/*/{cluster.name}.json")
    document = json.loads(path.read_text())
    marked = [
        resource.update(taint=True)
        for resource in document["checkpoint"]["latest"]["resources"]
        if resource["urn"].endswith(f"::{name}") and resource["custom"]
    ]
    assert marked, f"there is no {name}"
    path.write_text(json.dumps({**document, "version": 4, "features": ["taint"]}))


def ids(cluster):
    nodes = cluster.json("status")["nodes"]
    assert {node["state"] for node in nodes} == {"ready"}
    return {node["name"]: node["id"] for node in nodes}


@pytest.mark.parametrize(
    ("name", "renewed"),
    [
        ("node-1", {"node-1"}),
        ("control", NODES),
        ("experiment", NODES),
        # What takes nothing away when it goes takes no node along, either.
        *((name, set()) for name in ("shared", "debian-12", "identity", "key", "configuration")),
    ],
)
def test_a_forced_replacement_leaves_a_whole_cluster(bare, name, renewed):
    bare.call("up")
    bare.node("node-0", f"sudo tee {FILE}", "42")
    before = ids(bare)
    taint(bare, name)
    bare.call("up", "-y")
    after = ids(bare)
    assert {name for name in before if before[name] != after[name]} == renewed
    assert bare.node("node-1", f"cat {FILE}") == "42"
    assert bare.json("plan")["changes"] == []
    found = bare.json("audit")
    assert (found["missing"], found["unrecorded"]) == ([], [])
