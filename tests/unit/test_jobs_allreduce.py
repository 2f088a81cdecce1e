"""The parts of job allreduce that need neither Horovod nor a network."""

import itertools
import socket
import threading
from pathlib import Path

import pytest

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/allreduce"


@pytest.fixture(scope="module")
def links():
    return by_path.load(JOB / "links.py", "allreduce_links")


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
    found = {}

    def node(rank):
        found[rank] = links.measure(
            tmp_path / "links", rank, 3, f"node-{rank}", "127.0.0.1", 0.05, None
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


def test_a_sender_out_of_turn_waits(links):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        early, expected = (socket.create_connection(address) for _ in range(2))
        early.sendall(links.RANK.pack(7))
        expected.sendall(links.RANK.pack(3))
        door = links.Door(listener)
        with door.admit(3), early, expected:
            assert expected.recv(1) == links.GO
            early.settimeout(0.05)
            with pytest.raises(TimeoutError):
                early.recv(1)
            door.admit(7).close()
            early.settimeout(5)
            assert early.recv(1) == links.GO
