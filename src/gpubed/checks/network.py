"""The experiment network: packet size, link rates, a collective over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubed import jobs
from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.errors import GpubedError
from gpubed.ssh import SSH
from gpubed.units import format_rate
from gpubed.verification import Check

_IP_AND_ICMP_HEADERS = 28
_RATE_TOLERANCE = 0.05
_BUSBW_FLOOR = 0.9


def mtu(context: Context) -> Iterator[Check]:
    """Packets of the declared size pass unfragmented between neighbours."""
    network, nodes = context.allocation.experiment, context.allocation.nodes
    if network is None or len(nodes) < 2:
        why = "there is no experiment network" if network is None else "there is only one node"
        yield Check(id="network.mtu", result="skip", reason=why)
        return
    size = network.mtu - _IP_AND_ICMP_HEADERS

    def lost(node: Node, ssh: SSH) -> bool:
        peer = nodes[(nodes.index(node) + 1) % len(nodes)]
        command = "ping -q -M do -c 2 -i 0.2 -W 2 -s %s %s"
        return ssh.run(command, size, peer.experiment_address, check=False).exit_code != 0

    for node, failed in context.on_each(lost):
        yield Check(
            id="network.mtu",
            node=node.name,
            result="fail" if failed else "pass",
            value=network.mtu,
            unit="bytes",
            limit="passes unfragmented",
            reason="packets of this size are lost" if failed else "",
        )


def links_and_collective(context: Context) -> Iterator[Check]:
    """Links carry their declared rate, and an allreduce uses what they carry."""
    reason = _why_not(context)
    if reason:
        yield Check(id="link.rate", result="skip", reason=reason)
        yield Check(id="allreduce.busbw", result="skip", reason=reason)
        return
    settings = {"seconds": "1", "largest_s": "1.5", "sizes": "largest", "host_limit": "when-slow"}
    try:
        found = jobs.run(context.cluster, context.plan, context.allocation, "allreduce", settings)
    except GpubedError as error:
        yield Check(id="allreduce.busbw", result="fail", reason=error.message)
        return
    for link in found.metrics.get("links", ()):
        yield _link(link)
    if not found.metrics.get("links"):
        yield Check(id="link.rate", result="skip", reason="no link has a declared rate")
    yield _collective(found.metrics, found.failures)


def _why_not(context: Context) -> str:
    if len(context.allocation.nodes) < 2:
        return "there is only one node"
    if "horovod" not in context.roles:
        return "Horovod is not part of this cluster"
    return ""


def _link(link: dict[str, Any]) -> Check:
    declared, measured = link["declared_bps"], link["measured_bps"]
    right = abs(measured / declared - 1) <= _RATE_TOLERANCE
    return Check(
        id="link.rate",
        node=f"{link['src']}>{link['dst']}",
        result="pass" if right else "fail",
        value=round(measured / 1e6, 2),
        unit="Mbit/s",
        limit=f"{format_rate(declared)} ± {_RATE_TOLERANCE:.0%}",
        reason="" if right else "the link does not carry what the specification declares",
    )


def _collective(metrics: dict[str, Any], failures: list[str]) -> Check:
    largest = max(metrics.get("allreduce", ()), key=lambda row: row["bytes"], default=None)
    if largest is None or failures:
        return Check(id="allreduce.busbw", result="fail", reason="; ".join(failures) or "no result")
    ratio = largest["ratio"]
    if ratio is None:
        return Check(
            id="allreduce.busbw",
            result="pass",
            value=round(largest["busbw_bps"] / 1e6, 2),
            unit="Mbit/s",
            limit="no link has a declared rate",
        )
    right = ratio >= _BUSBW_FLOOR or metrics.get("limited_by") == "cpu"
    return Check(
        id="allreduce.busbw",
        result="pass" if right else "fail",
        value=round(ratio, 3),
        unit="of 0.94 · rate",
        limit=f"≥ {_BUSBW_FLOOR}, or as much as the CPU can drive",
        reason="" if right else "the collective does not use the link",
    )
