"""A job runs on a part of the cluster."""

import pytest

from gpubed.core.errors import UsageError
from gpubed.nodes.selection import choose
from support.samples import sample_allocation, sample_plan


def cluster(*slots):
    whole = sample_allocation(sample_plan(nodes=[{"name": "node", "count": len(slots)}]))
    pairs = zip(whole.nodes, slots, strict=True)
    nodes = tuple(node.model_copy(update={"slots": count}) for node, count in pairs)
    return whole.model_copy(update={"nodes": nodes})


def slots(chosen):
    return [node.slots for node in chosen.nodes]


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"nodes": 1}, [4, 0, 0]),
        ({"nodes": 2}, [4, 4, 0]),
        ({"nodes": 3}, [4, 4, 2]),
        ({"ranks": 1}, [1, 0, 0]),
        ({"ranks": 4}, [4, 0, 0]),
        ({"ranks": 5}, [4, 1, 0]),
        ({"ranks": 10}, [4, 4, 2]),
        ({"on": ["node-2"]}, [0, 0, 2]),
        ({"on": ["node-2", "head", "node-2"]}, [4, 0, 2]),
    ],
)
def test_ranks_start_where_they_were_asked_for(asked, got):
    assert slots(choose(cluster(4, 4, 2), **asked)) == got


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 3}, r"3 node\(s\) were asked for; cluster lab has 1 to 2"),
        ({"nodes": 0}, r"0 node\(s\)"),
        ({"ranks": 9}, r"9 rank\(s\) were asked for; cluster lab has 1 to 8"),
        ({"ranks": -1}, r"-1 rank\(s\)"),
        ({"on": ["node-7"]}, "no node 'node-7'"),
        ({"nodes": 1, "ranks": 1}, "exclude each other"),
        ({"nodes": 1, "on": ["node-0"]}, "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(asked, words):
    with pytest.raises(UsageError, match=words):
        choose(cluster(4, 4), **asked)
