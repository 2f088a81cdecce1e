"""GPUs: as many as asked for, one driver, no uncorrected memory errors."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.ssh import SSH
from gpubed.verification import Check

_QUERY = (
    "nvidia-smi --format=csv,noheader "
    "--query-gpu=driver_version,ecc.errors.uncorrected.volatile.total"
)
_IDS = ("gpu.count", "gpu.driver", "gpu.ecc")


def gpus(context: Context) -> Iterator[Check]:
    """Ask `nvidia-smi` on each node that was to have GPUs."""
    if not any(node.gpus for node in context.allocation.nodes):
        yield from (
            Check(id=id_, result="skip", reason="the cluster asks for no GPU") for id_ in _IDS
        )
        return

    def ask(node: Node, ssh: SSH) -> list[list[str]]:
        answer = ssh.run(_QUERY, check=False).stdout if node.gpus else ""
        return [[cell.strip() for cell in row.split(",")] for row in answer.splitlines() if row]

    rows = context.on_each(ask)
    drivers = {row[0] for _, answer in rows for row in answer}
    for node, answer in rows:
        yield from _node(node, answer, drivers)


def _node(node: Node, answer: list[list[str]], drivers: set[str]) -> Iterator[Check]:
    if not node.gpus:
        yield from (
            Check(id=id_, node=node.name, result="skip", reason="asks for no GPU") for id_ in _IDS
        )
        return
    yield Check(
        id="gpu.count",
        node=node.name,
        result="pass" if len(answer) == node.gpus else "fail",
        value=len(answer),
        unit="GPUs",
        limit=str(node.gpus),
        reason="" if len(answer) == node.gpus else "not every GPU answers nvidia-smi",
    )
    one = len(drivers) == 1
    yield Check(
        id="gpu.driver",
        node=node.name,
        result="pass" if one else "fail",
        value=", ".join(sorted({row[0] for row in answer})) or None,
        limit="the same on all nodes",
        reason="" if one else f"drivers of the cluster: {', '.join(sorted(drivers)) or 'none'}",
    )
    yield _ecc(node, [row[1] for row in answer])


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
