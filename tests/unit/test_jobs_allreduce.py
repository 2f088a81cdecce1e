"""The parts of job allreduce that need neither Horovod nor a network."""

import itertools
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/allreduce"


@pytest.fixture(scope="module")
def links():
    return by_path.load(JOB / "links.py", "allreduce_links")


@pytest.fixture(scope="module")
def transports():
    return by_path.load(JOB / "transports.py", "allreduce_transports")


@pytest.fixture
def collective(monkeypatch):
    for name in ("horovod", "horovod.torch", "torch", "psutil"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    return by_path.load(JOB / "collective.py", "allreduce_collective")


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        (4, [4]),
        (4098, [4096]),
        (100_000, [65_536, 100_000]),
        (262_144, [65_536, 262_144]),
        (528 << 20, [*(4**n << 16 for n in range(7)), 528 << 20]),
    ],
)
def test_the_largest_size_is_the_one_that_was_asked_for(collective, asked, sizes):
    """By its figures a campaign's point is known."""
    assert collective.sizes_to(asked) == sizes


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_of_nodes_meets_once(links, count):
    met = [tuple(sorted(pair)) for pairs in links.timetable(count) for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(count), 2))


@pytest.mark.parametrize(
    ("declared", "streams"),
    [(None, 1), (200e6, 1), (10e9, 1), (25e9, 3), (100e9, 10), (400e9, 40), (3.2e12, 64)],
)
def test_links_faster_than_a_stream_get_several(links, declared, streams):
    assert links.streams_for(declared) == streams


SAID = """
node-0:11:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-0:11:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
node-0:11:20 [0] NCCL INFO Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/3/GDRDMA
node-0:11:20 [0] NCCL INFO Channel 03/0 : 8[0] -> 0[0] [receive] via NET/IB/3(1)/GDRDMA/Shared
node-0:11:20 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/Socket/1
node-0:11:20 [0] NCCL INFO Connected all rings
"""


def test_transports_are_counted_without_their_numbers(transports, tmp_path):
    (tmp_path / "node-0.11").write_text(SAID)
    assert transports.told(tmp_path) == {
        "P2P/CUMEM": 1,
        "NET/IB/GDRDMA": 2,
        "NET/IB/GDRDMA/Shared": 1,
        "NET/Socket": 1,
    }
    assert transports.told(tmp_path / "nothing") == {}


def test_adapters_that_carry_are_counted(transports, tmp_path):
    (tmp_path / "node-0.11").write_text(SAID)
    (tmp_path / "node-1.11").write_text(SAID)
    assert transports.adapters(tmp_path) == 2
    assert transports.adapters(tmp_path / "nothing") == 0
