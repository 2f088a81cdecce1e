"""`pulumi up --replace` and `pulumi state taint`: whatever is replaced is there afterwards.

Nobody asks the provider about a forced replacement, so that the order is the program's.
"""

import pytest

from support.cluster import labelled
from support.taint import taint

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.docker]

FILE = "/shared/results.txt"
NODES = {"node-0", "node-1"}


def ids(cluster):
    nodes = cluster.json("status")["nodes"]
    assert {node["state"] for node in nodes} == {"ready"}
    return {node["name"]: node["id"] for node in nodes}


@pytest.mark.parametrize(
    ("names", "renewed"),
    [
        (["node-1"], {"node-1"}),
        (["control"], NODES),
        (["experiment"], NODES),
        # What takes nothing away when it goes takes no node along, either.
        (["shared", "debian-12", "identity", "key", "configuration"], set()),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_forced_replacement_leaves_a_whole_cluster(bare, names, renewed):
    bare.call("up")
    bare.node("node-0", f"sudo tee {FILE}", "42")
    before = ids(bare)
    taint(bare, *names)
    bare.call("up", "-y")
    after = ids(bare)
    assert {name for name in before if before[name] != after[name]} == renewed
    assert bare.node("node-1", f"cat {FILE}") == "42"
    assert bare.json("plan")["changes"] == []
    found = bare.json("audit")
    assert (found["missing"], found["unrecorded"]) == ([], [])


def test_a_node_that_was_renamed_in_the_state_stays(bare):
    """As after `pulumi state rename`: its new name adopted it, and its old one removed it."""
    bare.call("up")
    bare.node("node-0", f"sudo tee {FILE}", "42")
    before = ids(bare)
    for state in bare.root.glob(f".gpubed/pulumi/.pulumi/stacks/*/{bare.name}.json"):
        state.write_text(state.read_text().replace("::node-1", "::former"))
    bare.call("up", "-y")
    assert ids(bare) == before
    assert bare.json("plan")["changes"] == []
    assert bare.json("down", "-y")["survivors"] == []
    assert labelled(bare.name) == []
