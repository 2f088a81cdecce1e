"""The parts of job allreduce that need neither Horovod nor a network."""

import importlib.util
import itertools
import socket
import threading
import time
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "jobs/allreduce"


@pytest.fixture(scope="module")
def links():
    # By path: jobs are no package, and several have a main.py.
    spec = importlib.util.spec_from_file_location("allreduce_links", JOB / "links.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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


def test_two_nodes_measure_both_directions(links, tmp_path, monkeypatch):
    monkeypatch.setattr(links, "WARM_UP_S", 0.01)
    found = {}

    def node(rank):
        found[rank] = links.measure(tmp_path / "links", rank, 2, f"node-{rank}", "127.0.0.1", 0.05)

    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(2)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert time.monotonic() - start < 20
    assert {(row["src"], row["dst"]) for row in found[0] + found[1]} == {
        ("node-0", "node-1"),
        ("node-1", "node-0"),
    }
    assert all(row["measured_bps"] > row["goodput_bps"] > 0 for row in found[0] + found[1])
