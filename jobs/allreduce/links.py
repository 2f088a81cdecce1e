"""Measures the experiment network with plain TCP streams between pairs of nodes.

This runs before Horovod starts, since its background thread communicates every millisecond. Nodes
find each other through the run folder on shared storage. All nodes follow the same timetable, in
which each has one partner at a time; senders wait for the receiver's signal, and no other
coordination is needed.

A single stream is enough if it can carry the declared rate; faster links need several, whose sum
counts. Python's threads can send and receive at the same time.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

WARM_UP_S = 0.5
PATIENCE_S = 60.0
WINDOWS = 5
ENOUGH = 0.98
# The rate that one TCP stream carries on any machine; and the most streams that help.
ONE_STREAM_BPS = 10e9
MOST_STREAMS = 64
CHUNK = bytes(1 << 20)
RANK = struct.Struct("!I")
GO = b"g"
ETHERNET_IPV4_TCP = 14 + 20 + 20
TIMESTAMPS = 12
# struct tcp_info of linux/tcp.h: tcpi_options, tcpi_bytes_received, tcpi_data_segs_in
OPTIONS_AT, BYTES_AT, SEGMENTS_AT = 5, 128, 152


@dataclass(frozen=True)
class Peer:
    """The address on which a node accepts streams."""

    rank: int
    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Reading:
    """Totals of a socket's received bytes and packets."""

    seconds: float
    payload: int
    wire: int


def read_socket(connection: socket.socket) -> Reading:
    """Asks the kernel for a connection's totals.

    The bytes on the wire are computed from the number of segments: interface counters of virtual
    and offloading devices count many segments as one large packet, with one header.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (payload,) = struct.unpack_from("=Q", info, BYTES_AT)
    (segments,) = struct.unpack_from("=I", info, SEGMENTS_AT)
    header = ETHERNET_IPV4_TCP + (TIMESTAMPS if info[OPTIONS_AT] & 1 else 0)
    return Reading(time.perf_counter(), payload, payload + segments * header)


def streams_for(declared: float | None) -> int:
    """The number of streams that a rate needs."""
    return max(1, min(MOST_STREAMS, math.ceil((declared or 0) / ONE_STREAM_BPS)))


def timetable(count: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which each node meets each other (circle method)."""
    seats = [*range(count), *([-1] if count % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [pair for pair in pairs if -1 not in pair]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def meet(folder: Path, me: Peer, count: int) -> list[Peer]:
    """Publishes the address of this node's listener, and waits for those of all others."""
    folder.mkdir(exist_ok=True)
    draft = folder / f".{me.rank}"
    draft.write_text(json.dumps(asdict(me)))
    draft.rename(folder / f"{me.rank}.json")
    give_up = time.monotonic() + PATIENCE_S
    while len(found := sorted(folder.glob("*.json"))) < count:
        if time.monotonic() > give_up:
            raise SystemExit(f"only {len(found)} of {count} nodes published an address in {folder}")
        time.sleep(0.05)
    peers = [Peer(**json.loads(path.read_text())) for path in found]
    return sorted(peers, key=lambda peer: peer.rank)


class Door:
    """Admits senders one by one; others wait without sending."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._waiting: dict[int, list[socket.socket]] = {}

    def admit(self, rank: int, count: int = 1) -> list[socket.socket]:
        """Waits for all streams of a sender and signals it to start."""
        while len(self._waiting.get(rank, [])) < count:
            stream, _ = self._listener.accept()
            stream.settimeout(PATIENCE_S)
            (sender,) = RANK.unpack(stream.recv(RANK.size, socket.MSG_WAITALL))
            self._waiting.setdefault(sender, []).append(stream)
        streams = self._waiting.pop(rank)
        for stream in streams:
            stream.sendall(GO)
        return streams


def send(peer: Peer, rank: int, patience: float, count: int = 1) -> None:
    """Sends once the receiver signals, until it has enough and closes the connection."""
    with ThreadPoolExecutor(count) as pool:
        streams = [pool.submit(pour, peer, rank, patience) for _ in range(count)]
    for stream in streams:
        stream.result()


def pour(peer: Peer, rank: int, patience: float) -> None:
    """Sends one stream."""
    with (
        socket.create_connection((peer.address, peer.port), timeout=patience) as stream,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        stream.sendall(RANK.pack(rank))
        if stream.recv(len(GO)) != GO:
            raise SystemExit(f"{peer.name} closed the connection before its stream")
        while True:
            stream.sendall(CHUNK)


def drain(stream: socket.socket, enough: threading.Event) -> None:
    """Receives until it has enough, then closes the connection."""
    buffer = bytearray(len(CHUNK))
    with stream:
        while not enough.is_set():
            if not stream.recv_into(buffer):
                raise SystemExit("the sender of a stream closed the connection")


def receive(
    streams: list[socket.socket], seconds: float, declared: float | None
) -> tuple[float, float]:
    """Receives one sender's streams; returns bit/s of payload and on the wire.

    A busy host may starve a stream for a while, which says nothing about the link. So up to
    `WINDOWS` windows are measured, and the fastest counts. A link that cannot carry its rate has no
    fast window, and one that carries more than declared shows it.
    """
    enough = threading.Event()
    with ThreadPoolExecutor(len(streams)) as pool:
        drains = [pool.submit(drain, stream, enough) for stream in streams]
        try:
            time.sleep(WARM_UP_S)
            best = fastest(streams, seconds, declared)
        finally:
            enough.set()
    for drained in drains:
        drained.result()
    return best


def fastest(
    streams: list[socket.socket], seconds: float, declared: float | None
) -> tuple[float, float]:
    """The rates of the fastest window."""
    best = (0.0, 0.0)
    for _ in range(WINDOWS if declared else 1):
        before = total(streams)
        time.sleep(seconds)
        best = max(best, between(before, total(streams)), key=lambda pair: pair[1])
        if declared and best[1] >= ENOUGH * declared:
            break
    return best


def total(streams: list[socket.socket]) -> Reading:
    """The received totals of several sockets."""
    readings = [read_socket(stream) for stream in streams]
    return Reading(
        sum(reading.seconds for reading in readings) / len(readings),
        sum(reading.payload for reading in readings),
        sum(reading.wire for reading in readings),
    )


def between(before: Reading, after: Reading) -> tuple[float, float]:
    """The rates between two readings, in bit/s of payload and on the wire."""
    elapsed = after.seconds - before.seconds
    return 8 * (after.payload - before.payload) / elapsed, 8 * (after.wire - before.wire) / elapsed


def measure(
    folder: Path,
    rank: int,
    count: int,
    name: str,
    address: str,
    seconds: float,
    declared: float | None,
    tell: Callable[[int, int], None],
) -> list[dict[str, str | float]]:
    """Takes part in all streams of this node; returns the rates that it received.

    Args:
        folder: Folder on shared storage through which the nodes find each other.
        rank: This node's place among the nodes.
        count: The number of nodes.
        name: This node's name.
        address: Its address in the experiment network.
        seconds: Length of each measurement.
        declared: The rate that the links should have, in bit/s, if any.
        tell: Called with the number of measured pairs of nodes and of all pairs.
    """
    patience = PATIENCE_S + 4 * count * (WARM_UP_S + WINDOWS * seconds)
    streams = streams_for(declared)
    with socket.create_server((address, 0), backlog=count * streams) as listener:
        listener.settimeout(patience)
        peers = meet(folder, Peer(rank, name, address, listener.getsockname()[1]), count)
        door, results = Door(listener), []
        pairs = [pair for together in timetable(count) for pair in together]
        for done, (first, second) in enumerate(pairs):
            tell(done, len(pairs))
            for source, target in ((first, second), (second, first)):
                if rank == source:
                    send(peers[target], rank, patience, streams)
                elif rank == target:
                    rates = receive(door.admit(source, streams), seconds, declared)
                    results.append(row(peers[source], peers[target], *rates))
        return results


def row(source: Peer, target: Peer, goodput: float, wire: float) -> dict[str, str | float]:
    """The result for one direction of a pair."""
    return {
        "src": source.name,
        "dst": target.name,
        "measured_bps": wire,
        "goodput_bps": goodput,
    }
