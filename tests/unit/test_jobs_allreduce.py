"""The parts of job allreduce that need neither Horovod nor a network."""

import itertools
import socket
import sys
import threading
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


@pytest.mark.parametrize("count", range(2, 12))
def test_a_node_has_one_partner_at_a_time(links, count):
    for pairs in links.timetable(count):
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))


def test_a_missing_node_is_named_in_the_error(links, tmp_path, monkeypatch):
    monkeypatch.setattr(links, "PATIENCE_S", 0)
    with pytest.raises(SystemExit, match="only 1 of 2 nodes"):
        links.meet(tmp_path / "links", links.Peer(0, "node-0", "127.0.0.1", 1), 2)


def test_a_socket_counts_headers_of_every_segment(links):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        stream, _ = listener.accept()
        with sender, stream:
            sender.sendall(bytes(1000))
            assert len(stream.recv(1000, socket.MSG_WAITALL)) == 1000
            reading = links.read_socket(stream)
    assert reading.payload == 1000
    # Ethernet, IPv4 and TCP with time stamps, for one segment or a few.
    assert (reading.wire - reading.payload) % 66 == 0
    assert 66 <= reading.wire - reading.payload <= 330


def test_every_direction_is_measured_and_named_right(links, tmp_path, monkeypatch):
    """Three nodes: one is early for every round, so senders queue at a receiver."""
    monkeypatch.setattr(links, "WARM_UP_S", 0.01)
    found, told = {}, []

    def node(rank):
        name, tell = f"node-{rank}", lambda *step: told.append((rank, *step))
        found[rank] = links.measure(
            tmp_path / "links", rank, 3, name, "127.0.0.1", 0.05, None, tell
        )

    threads = [threading.Thread(target=node, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    rows = [row for part in found.values() for row in part]
    names = [f"node-{rank}" for rank in range(3)]
    assert sorted((row["src"], row["dst"]) for row in rows) == sorted(
        itertools.permutations(names, 2)
    )
    assert all(row["dst"] == f"node-{rank}" for rank, part in found.items() for row in part)
    assert all(row["measured_bps"] > row["goodput_bps"] > 0 for row in rows)
    assert [step for step in told if step[0] == 0] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]


def test_a_sender_out_of_turn_waits(links):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        early, expected = (socket.create_connection(address) for _ in range(2))
        early.sendall(links.RANK.pack(7))
        expected.sendall(links.RANK.pack(3))
        door = links.Door(listener)
        [admitted] = door.admit(3)
        with admitted, early, expected:
            assert expected.recv(1) == links.GO
            early.settimeout(0.05)
            with pytest.raises(TimeoutError):
                early.recv(1)
            door.admit(7)[0].close()
            early.settimeout(5)
            assert early.recv(1) == links.GO


@pytest.mark.parametrize(
    ("declared", "streams"),
    [(None, 1), (200e6, 1), (10e9, 1), (25e9, 3), (100e9, 10), (400e9, 40), (3.2e12, 64)],
)
def test_links_faster_than_a_stream_get_several(links, declared, streams):
    assert links.streams_for(declared) == streams


def test_several_streams_are_measured_together(links, tmp_path, monkeypatch):
    """Over real sockets: no two nodes of this machine have a link of 100 Gbit/s."""
    monkeypatch.setattr(links, "WARM_UP_S", 0.05)
    monkeypatch.setattr(links, "WINDOWS", 1)
    found, opened = {}, []
    admit = links.Door.admit

    def counted(door, rank, count=1):
        opened.append(count)
        return admit(door, rank, count)

    monkeypatch.setattr(links.Door, "admit", counted)

    def node(rank):
        found[rank] = links.measure(
            tmp_path / "links", rank, 2, f"node-{rank}", "127.0.0.1", 0.2, 100e9, lambda *_: None
        )

    threads = [threading.Thread(target=node, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert opened == [10, 10]
    # Loopback does more than this with a single stream, on any machine.
    assert all(row["measured_bps"] > 1e9 for part in found.values() for row in part)


def test_the_sum_of_all_sockets_counts(links):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        senders = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        streams = [listener.accept()[0] for _ in senders]
        for sender, stream in zip(senders, streams, strict=True):
            sender.sendall(bytes(1000))
            stream.recv(1000, socket.MSG_WAITALL)
        assert links.total(streams).payload == 3000
        for one in (*senders, *streams):
            one.close()


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
