"""Checks the experiment network: packet size, link rates, an allreduce over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gpubed.checks import tcp_links
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.checks.tcp_links import Row
from gpubed.core import reading, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.units import format_rate
from gpubed.jobs import execution
from gpubed.jobs.runs.record import Request
from gpubed.nodes.allocation import Node
from gpubed.nodes.answers import Answer
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import POSTPONED, Check
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

_IP_AND_ICMP_HEADERS = 28
_IDS = ("link.rate", "allreduce.busbw", "rdma.gpudirect")
_GPUDIRECT = "GDRDMA"
_TOLERANCE = 0.05  # of a link whose rate the testbed limits
# Horovod's Gloo, and NCCL by default, open one TCP stream to a neighbour.
_ONE_STREAM_BPS = 10e9
# Least share of the rate on links that the testbed does not shape, up to the rate that TCP reaches
# without tuning. RDMA has its own check.
_UNSHAPED, _TCP_BPS = 0.8, 50e9
_GOODPUT = 0.94  # TCP payload's share of a layer-2 rate at an MTU of 1500
_COLLECTIVE = 0.9  # least share of the goodput for an allreduce


class _Metrics(BaseModel):
    """The metrics of job `allreduce` that verification needs."""

    model_config = ConfigDict(allow_inf_nan=False)

    links: tuple[Row, ...] = ()
    busbw_bps: float | None = None
    host_limit_bps: float | None = None
    device: str = ""
    transports: dict[str, int] = {}
    adapters: int = 0


@at(Stage.REACH, "network.mtu")
def mtu(context: Context) -> Iterator[Check]:
    """Packets of the declared size pass unfragmented between neighbours."""
    network, nodes = context.allocation.experiment, context.allocation.nodes
    if reason := _differs(context):
        yield Check(id="network.mtu", result="fail", reason=reason)
        return
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
        why = "packets of this size are lost" if failed else ""
        yield judged("network.mtu", node.name, why, network.mtu, "passes unfragmented", "bytes")


@at(Stage.LOAD, "link.rate")
def links_and_collective(context: Context) -> Iterator[Check]:
    """Links carry their declared rate, and an allreduce of all ranks uses that rate.

    Ranks sum with NCCL on the requested GPUs, or on the CPU if there are none. Nodes without ranks
    (no GPU while other nodes have some) have their links measured by `tcp_links`. The bounds follow
    from the specification; jobs/allreduce/README.md lists them.
    """
    idle = "it has no GPU, unlike other nodes: jobs start no ranks on it"
    yield from (
        Check(id="allreduce.busbw", node=node.name, result="skip", reason=idle)
        for node in context.allocation.nodes
        if not node.slots
    )
    if len(context.allocation.with_ranks) < 2:
        yield from _alone(context)
        return
    state = context.cluster.paths.state
    holder = runlock.measurer(state)
    if holder and not runlock.is_ours(holder, state) and not _differs(context):
        later = "`gpubed verify CLUSTER` measures them after its end"
        yield from skipped(_IDS, f"{holder} {POSTPONED}: {later}")
        return
    yield from _idle_links(context)
    try:
        metrics, checks = _allreduce(context, 0.5, 0.5)
        if metrics.busbw_bps is not None and any(check.result == "fail" for check in checks):
            # A longer run decides, in which fixed costs count less.
            metrics, checks = _allreduce(context, 1.0, 1.5)
    except GpubedError as error:
        yield judged("allreduce.busbw", "", error.message)
        yield from _links(context, ())
        yield _gpudirect(context, _Metrics())
        return
    yield from checks
    yield _gpudirect(context, metrics)


def _alone(context: Context) -> Iterator[Check]:
    alone = len(context.allocation.nodes) < 2
    reason = "there is only one node" if alone else "ranks start on one node only"
    yield from skipped(_IDS[1:], reason)
    if wrong := _differs(context):
        yield judged("link.rate", "", wrong)
    elif context.plan.experiment is None or alone:
        yield from skipped(_IDS[:1], reason)
    else:
        yield from _idle_links(context)


def _idle_links(context: Context) -> Iterator[Check]:
    """Measure the links of nodes without ranks, if a rate is declared."""
    declared = context.plan.experiment
    if declared is None or declared.rate_bps is None or _differs(context):
        return
    try:
        rows = tcp_links.measured(context, declared.rate_bps)
        yield from (link(context.plan, row, declared.rate_bps) for row in rows)
    except GpubedError as error:
        yield judged("link.rate", "", error.message)


def _allreduce(context: Context, seconds: float, largest_s: float) -> tuple[_Metrics, list[Check]]:
    wanted = context.plan.spec.networks.experiment
    # A ring takes 2 (n - 1) steps, each delayed by the latency: at most 1/20 of the time.
    steps = 2 * (len(context.allocation.with_ranks) - 1)
    largest_s += 20 * steps * (wanted.latency if wanted else 0.0)
    settings = {"seconds": f"{seconds:g}", "largest_s": f"{largest_s:g}"}
    settings |= {"sizes": "largest", "host_limit": "when-slow"}
    request = Request(job="allreduce", settings=settings)
    result = execution.run(context.cluster, request, terms=execution.Terms(by="verify"))
    try:  # nodes are not trusted
        metrics = _Metrics.model_validate(result.metrics)
    except ValidationError as error:
        head = context.allocation.head.name
        answer = Answer(head, "the metrics of allreduce", str(result.metrics))
        raise answer.misfit(reading.words(error)) from None
    collective = _collective(context, metrics, result.failures)
    return metrics, [*_links(context, metrics.links), collective]


def _links(context: Context, rows: Sequence[Row]) -> Iterator[Check]:
    declared = context.plan.experiment
    if declared is None:
        yield Check(id="link.rate", result="skip", reason="no link has a declared rate")
        return
    if reason := _differs(context):
        yield judged("link.rate", "", reason)
        return
    for row in rows:
        yield link(context.plan, row.model_dump(), declared.rate_bps or 0)
    if not rows:
        why = f"{format_rate(declared.rate_bps or 0)} are declared, and no link was measured"
        yield judged("link.rate", "", why)


def _differs(context: Context) -> str:
    """Return how the cluster's network differs from the declared one; empty if it does not."""
    declared, has = context.plan.experiment, context.allocation.experiment
    if declared is None or (has is None and len(context.allocation.nodes) == 1):
        return ""
    if has is None:
        return "a network is declared, and the cluster has no such network: gpubed up CLUSTER"
    if declared.rate_bps == has.rate_bps and declared.mtu in (None, has.mtu):
        return ""
    words = (f"{format_rate(one.rate_bps or 0)}, MTU {one.mtu or 'any'}" for one in (declared, has))
    return "{} are declared, and the cluster has {}: gpubed up CLUSTER".format(*words)


def link(plan: ClusterPlan, row: dict[str, Any], rate_bps: float) -> Check:
    """Judge the rate measured from one node to another by the declared rate, in bit/s."""
    shaped = registry.backend(plan.backend).shapes_links(plan.spec)
    exact = shaped and rate_bps <= _ONE_STREAM_BPS
    least = (1 - _TOLERANCE) * rate_bps if exact else _UNSHAPED * min(rate_bps, _TCP_BPS)
    most = (1 + _TOLERANCE) * rate_bps if shaped else None
    measured, reason = row["measured_bps"], ""
    if measured < least:
        reason = "the link is slower than the specification declares"
    elif most is not None and measured > most:
        reason = "the link is faster than the specification declares"
    limit = f"≥ {format_rate(least)}" + (f" and ≤ {format_rate(most)}" if most else "")
    pair = f"{row['src']}>{row['dst']}"
    return judged("link.rate", pair, reason, round(measured / 1e6, 2), limit, "Mbit/s")


def _collective(context: Context, metrics: _Metrics, failures: list[str]) -> Check:
    id_ = "allreduce.busbw"
    busbw, alone = metrics.busbw_bps, metrics.host_limit_bps
    if busbw is None or failures:
        return judged(id_, "", "; ".join(failures) or "no result")
    rate = (context.plan.experiment and context.plan.experiment.rate_bps) or 0
    wanted = context.plan.spec.networks.experiment
    reachable = _GOODPUT * min(rate, _ONE_STREAM_BPS)
    floor = _COLLECTIVE * reachable if rate else None
    by_cpu = False
    on_gpus = any(node.gpus for node in context.allocation.with_ranks) and not context.simulated
    if rate and wanted and wanted.rdma and on_gpus:
        floor = wanted.rdma.floor * rate
    elif rate and alone and not on_gpus:
        # CPUs that alternate between computing and sending reach 1 / (1/link + 1/CPU).
        in_turns = 1 / (1 / reachable + 1 / alone)
        by_cpu = alone < reachable or busbw >= _COLLECTIVE * in_turns
    right = floor is None or busbw >= floor or by_cpu
    limit = "no link has a declared rate" if floor is None else f"≥ {format_rate(floor)}"
    limit += ", or as much as the CPU can drive" if by_cpu else ""
    why = "" if right else "the collective does not use the rate of the link (measured twice)"
    return judged(id_, "", why, round(busbw / 1e6, 2), limit, f"Mbit/s on {metrics.device}")


def _gpudirect(context: Context, metrics: _Metrics) -> Check:
    id_, wanted = "rdma.gpudirect", context.plan.spec.networks.experiment
    with_gpus = [node for node in context.allocation.nodes if node.gpus]
    if wanted is None or wanted.rdma is None or len(with_gpus) < 2:
        why = "the cluster does not ask for RDMA between GPUs"
        return Check(id=id_, result="skip", reason=why)
    if context.simulated:
        limit = "its GPUs are simulated: no adapter can reach their memory"
        return Check(id=id_, result="simulated", limit=limit)
    facts = filter(None, (context.facts[node.name] for node in with_gpus))
    # Soft-RoCE has no PCI address.
    has_adapter = any(hca.pci and hca.active for node_facts in facts for hca in node_facts.hcas)
    if wanted.rdma.device == "any" and not has_adapter:
        why = "Soft-RoCE, which networks.experiment.rdma.device: any allows, has no GPUDirect"
        return Check(id=id_, result="skip", reason=why)
    between = {name: n for name, n in metrics.transports.items() if name.startswith("NET/")}
    direct = {name: count for name, count in between.items() if _GPUDIRECT in name}
    reason = ""
    if not between:
        reason = "NCCL did not log how it moved data between nodes"
    elif between != direct:
        used = ", ".join(sorted(set(between) - set(direct)))
        reason = (
            f"NCCL used {used}: a driver with DMA-BUF or the module nvidia_peermem is needed, ACS "
            "off on bare metal, and an adapter within a PCI switch of each GPU (NCCL_NET_GDR_LEVEL)"
        )
    limit = f"all {sum(between.values())} between nodes by GPUDirect"
    return judged(
        id_,
        "",
        reason,
        sum(direct.values()),
        f"{limit}, over {metrics.adapters} adapter(s) of a node",
        "channels",
    )
