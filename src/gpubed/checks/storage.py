"""Checks file systems: none is full; the shared one is the same on all nodes, and fast.

fio measures one node at a time, as the expected rates are those of a single node. Direct I/O leaves
out the client's cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TypeVar

from pydantic import AliasPath, BaseModel, Field

from gpubed.checks.context import Context, judged
from gpubed.checks.registry import Stage, at
from gpubed.core.units import format_rate
from gpubed.nodes import answers, disks
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check
from gpubed.spec.sections import Throughput

_FIO = (
    "fio --name=verify --filename=%s --rw=%s --bs=%s --size=256M --direct=1 --ioengine=psync "
    "--numjobs=1 --time_based --runtime=3 --end_fsync=1 --output-format=json"
)
T = TypeVar("T", bound=BaseModel)


class _Written(BaseModel):
    """fio's report of writing, in byte/s."""

    rate: float = Field(validation_alias=AliasPath("jobs", 0, "write", "bw_bytes"))


class _Read(BaseModel):
    """fio's report of reading, in byte/s, and the 99th percentile of its latency in ns."""

    rate: float = Field(validation_alias=AliasPath("jobs", 0, "read", "bw_bytes"))
    p99: float = Field(
        validation_alias=AliasPath("jobs", 0, "read", "clat_ns", "percentile", "99.000000")
    )


@at(Stage.STORAGE, "storage.space")
def space(context: Context) -> Iterator[Check]:
    """No file system of a node is full."""
    shared = context.plan.spec.storage.shared.path
    for node, found in context.on_each(lambda _, ssh: disks.look(ssh, shared)):
        reasons = disks.full(found)
        fullest = max((one.used for one in found), default=None)
        yield judged("storage.space", node.name, "; ".join(reasons), fullest, "none full", "%")


@at(Stage.STORAGE, "storage.shared")
def shared(context: Context) -> Iterator[Check]:
    """Write a file on each node, and read all of them on each node."""
    root = context.plan.spec.storage.shared.path
    folder, token = f"{root}/.verify-{secrets.token_hex(4)}", secrets.token_hex(16)
    wanted = len(context.allocation.nodes)

    def written(node: Node, ssh: SSH) -> str:
        write = f"mkdir -p {folder} && echo {token} > {folder}/{node.name}"
        done = ssh.run(write, check=False)
        return f"{root} cannot be written to: {done.tail}" if done.exit_code else ""

    try:
        refused = {node.name: why for node, why in context.on_each(written)}

        def seen(_: Node, ssh: SSH) -> int:
            return ssh.run(f"cat {folder}/*", check=False).stdout.split().count(token)

        for node, count in context.on_each(seen):
            why = refused[node.name] or f"{root} is not the same on all nodes"
            why = "" if count == wanted else why
            yield judged("storage.shared", node.name, why, count, str(wanted), "nodes' files")
    finally:
        context.head.run("rm -rf %s", folder, check=False)


@at(Stage.STORAGE, "storage.throughput", "storage.write", "storage.read", "storage.latency")
def throughput(context: Context) -> Iterator[Check]:
    """Measure the rates and the latency that the specification expects, node by node."""
    shared = context.plan.spec.storage.shared
    if shared.expect is None:
        why = "storage.shared.expect is not in the specification"
        yield Check(id="storage.throughput", result="skip", reason=why)
        return
    for node in context.allocation.nodes:
        file = f"{shared.path}/.fio-{secrets.token_hex(4)}"
        session = context.sessions[node.name]
        try:
            yield from _node(node, session, file, shared.expect)
        finally:
            session.run("rm -f %s", file)


def _node(node: Node, session: SSH, file: str, expect: Throughput) -> Iterator[Check]:
    if expect.write is not None:
        written = _fio(session, file, "write", "1M", _Written).rate * 8
        yield rate("storage.write", node.name, written, expect.write)
    if expect.read is not None:
        read = _fio(session, file, "read", "1M", _Read).rate * 8
        yield rate("storage.read", node.name, read, expect.read)
    if expect.latency is not None:
        found = _fio(session, file, "randread", "4k", _Read).p99
        yield latency(node.name, found / 1e9, expect.latency)


def _fio(session: SSH, file: str, pattern: str, block: str, report: type[T]) -> T:
    return answers.of(session, "fio", session.run(_FIO, file, pattern, block)).json(report)


def rate(check: str, node: str, measured_bps: float, floor_bps: int) -> Check:
    """Judge a measured rate in bit/s."""
    slow = measured_bps < floor_bps
    why = "the shared storage is slower than the specification expects" if slow else ""
    limit = f"≥ {format_rate(floor_bps)}"
    return judged(check, node, why, round(measured_bps / 1e6, 1), limit, "Mbit/s")


def latency(node: str, measured_s: float, ceiling_s: float) -> Check:
    """Judge the 99th percentile of the latency of small reads, in seconds."""
    why = "small reads take longer than the specification expects" if measured_s > ceiling_s else ""
    limit = f"≤ {ceiling_s * 1e3:g} ms"
    return judged("storage.latency", node, why, round(measured_s * 1e3, 3), limit, "ms")
