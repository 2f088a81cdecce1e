"""`gpubed plan` as a user runs it: a real process and the embedded engine."""

import pytest

from gpubed.core import runlock
from support.cluster import Cluster

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path):
    # A name of its own: the addresses that it picks should be nobody's on this machine.
    return Cluster(tmp_path, "planned", configure=False)


def test_a_plan_alone_leaves_no_folder_of_the_cluster(cluster):
    """Else `gpubed status` knew of a cluster that never was, once its specification is gone."""
    cluster.call("check")
    cluster.call("plan", "--engine", "embedded")
    assert not cluster.state.exists()


def test_the_roles_are_named_with_the_nodes_that_they_come_to(tmp_path):
    cluster = Cluster(tmp_path, "planned")
    names = ["node-0", "node-1", "node-2"]
    found = cluster.json("plan", "--engine", "embedded")["roles"]
    assert {"name": "firewall", "nodes": names} in found
    said = cluster.call("plan", "--engine", "embedded").stdout
    assert f"apply    {', '.join(role['name'] for role in found)} on {', '.join(names)}" in said


def test_an_error_of_many_lines_is_shown_whole(cluster):
    program = cluster.root / "stacks" / "cluster" / "__main__.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "from gpubed.core.errors import Refused\n"
        "raise Refused('there is no flavor huge\\n  there is no image old', 'take others')\n"
    )
    done = cluster.call("plan", "--engine", "embedded", rc=1)
    assert "there is no flavor huge" in done.stderr
    assert "there is no image old" in done.stderr
    assert "Traceback" not in done.stderr.partition("error:")[2]


def test_beside_a_run_that_changes_the_cluster_nothing_is_planned(cluster):
    with runlock.hold(cluster.state, "down"):
        said = cluster.call("plan", "--engine", "embedded", rc=5).stderr
        assert "planned is held by `gpubed down` (pid " in said
    cluster.call("plan", "--engine", "embedded")
