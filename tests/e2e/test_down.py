"""`down` leaves nothing behind but the results."""

import pytest

from support.cluster import labelled

pytestmark = [pytest.mark.quick, pytest.mark.e2e, pytest.mark.docker]


def test_down_removes_all_and_lists_it(cluster):
    assert labelled(cluster.name)
    removal = cluster.json("down", "-y")
    assert removal["survivors"] == []
    removed = "\n".join(removal["removed"])
    for name in ("node-0", "node-1", "control", "experiment", "shared"):
        assert name in removed
    assert labelled(cluster.name) == []
    stack = (
        cluster.root
        / ".gpubed"
        / "pulumi"
        / ".pulumi"
        / "stacks"
        / "gpubed"
        / f"{cluster.name}.json"
    )
    assert not stack.exists()
    assert {path.name for path in cluster.state.iterdir()} <= {"runs", "campaigns"}
    assert not (cluster.spec_path.parent / "hosts.yml").exists()


def test_a_second_down_finds_nothing(cluster):
    assert cluster.json("down", "-y")["removed"] == []
