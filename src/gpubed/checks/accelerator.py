"""Hardware: identified on every node; GPUs as many as asked for, one driver, no memory errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.hardware.facts import Facts
from gpubed.ssh import SSH
from gpubed.verification import Check

_ECC = "nvidia-smi --format=csv,noheader --query-gpu=ecc.errors.uncorrected.volatile.total"
_IDS = ("gpu.count", "gpu.driver", "gpu.ecc")


def hardware(context: Context) -> Iterator[Check]:
    """Ask each node what it is made of; nobody had to type it."""
    for node in context.allocation.nodes:
        facts = context.facts[node.name]
        reason = "" if facts else "gpubed-facts does not answer: gpubed configure --tags hardware"
        unknown = [gpu for gpu in facts.gpus if gpu.generation is None] if facts else []
        if unknown:
            reason = f"unknown GPUs: {', '.join(gpu.title for gpu in unknown)}"
        yield Check(
            id="hardware.identified",
            node=node.name,
            result="fail" if reason else "pass",
            value=_described(facts) if facts else None,
            limit="everything has a name",
            reason=reason,
        )


def gpus(context: Context) -> Iterator[Check]:
    """Compare each node's GPUs with what it was to have."""
    if not any(node.gpus for node in context.allocation.nodes):
        yield from (
            Check(id=id_, result="skip", reason="the cluster asks for no GPU") for id_ in _IDS
        )
        return
    found = [(node, context.facts[node.name]) for node in context.allocation.nodes]
    errors = dict(context.on_each(_uncorrected))
    asking = [facts for node, facts in found if node.gpus and facts]
    drivers = {gpu.driver for facts in asking for gpu in facts.gpus if gpu.driver}
    for node, facts in found:
        if node.gpus:
            yield _count(node, facts)
            yield _driver(node, facts, drivers)
            yield _ecc(node, errors[node])
        else:
            yield from (
                Check(id=id_, node=node.name, result="skip", reason="asks for no GPU")
                for id_ in _IDS
            )


def _uncorrected(node: Node, ssh: SSH) -> list[str]:
    return ssh.run(_ECC, check=False).stdout.split() if node.gpus else []


def _described(facts: Facts) -> str:
    parts = [f"{count} x {title}" for title, count in Counter(g.title for g in facts.gpus).items()]
    parts += [f"{len(facts.nvswitches)} NVSwitches"] if facts.nvswitches else []
    parts += [f"HCA {hca.name}" for hca in facts.hcas]
    parts += [f"{len(facts.interfaces)} interfaces", f"{len(facts.disks)} disks"]
    return ", ".join([f"{facts.cpus} CPUs", *parts])


def _count(node: Node, facts: Facts | None) -> Check:
    on_bus = facts.gpus if facts else ()
    answering = sum(gpu.index is not None for gpu in on_bus)
    reason = ""
    if answering < node.gpus:
        reason = (
            f"cluster.yml asks for {node.gpus} GPU(s) and {answering} answer(s); "
            f"{len(on_bus)} are on the PCI bus: "
            f"{', '.join(f'{gpu.title} at {gpu.pci}' for gpu in on_bus) or 'none'}"
        )
    return Check(
        id="gpu.count",
        node=node.name,
        result="fail" if reason else "pass",
        value=answering,
        unit="GPUs",
        limit=f"at least {node.gpus}",
        reason=reason,
    )


def _driver(node: Node, facts: Facts | None, drivers: set[str]) -> Check:
    one = len(drivers) == 1
    mine = {gpu.driver for gpu in facts.gpus if gpu.driver} if facts else set()
    return Check(
        id="gpu.driver",
        node=node.name,
        result="pass" if one and mine else "fail",
        value=", ".join(sorted(mine)) or None,
        limit="the same on all nodes",
        reason=""
        if one and mine
        else f"drivers of the cluster: {', '.join(sorted(drivers)) or 'none'}",
    )


def _ecc(node: Node, counts: list[str]) -> Check:
    known = [int(count) for count in counts if count.isdigit()]
    if not known:
        reason = "the GPUs report no ECC counters"
        return Check(id="gpu.ecc", node=node.name, result="skip", reason=reason)
    return Check(
        id="gpu.ecc",
        node=node.name,
        result="fail" if sum(known) else "pass",
        value=sum(known),
        unit="uncorrected errors",
        limit="0",
        reason="replace the GPU or reset it" if sum(known) else "",
    )
