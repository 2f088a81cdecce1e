"""Checks that each GPU computes and stores correctly, and NCCL's sums are as fast as the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubed.checks.context import Context
from gpubed.checks.proof import Collective, Proof
from gpubed.checks.stages import Stage, at
from gpubed.hardware import facts, floors
from gpubed.nodes.allocation import Node
from gpubed.nodes.verification import Check

_IDS = ("gpu.compute", "gpu.memory", "gpu.pairs", "gpu.allreduce")
# Share of the rate of the node's fastest GPU of the same model; a throttled one is far below.
_SLOW = 0.7


@at(Stage.HARDWARE)
def compute(context: Context) -> Iterator[Check]:
    """Judge what the GPUs of each node did."""
    asking = [node for node in context.allocation.nodes if node.gpus]
    if not asking:
        yield from (
            Check(id=id_, result="skip", reason="the cluster asks for no GPU") for id_ in _IDS
        )
        return
    for node in context.allocation.nodes:
        if node.gpus:
            known = context.facts[node.name]
            yield from on_node(node, context.proofs[node.name], known)
        else:
            yield from _skipped(node, _IDS, "asks for no GPU")


def on_node(node: Node, proof: Proof, known: facts.Facts | None) -> Iterator[Check]:
    """Judge the GPUs of one node.

    Args:
        node: The node, of whose GPUs `gpus` were asked for.
        proof: Their results.
        known: The node's facts, if any; they tell how its GPUs are connected.
    """
    yield _compute(node, proof)
    yield _memory(node, proof)
    if proof.simulated:
        # The CPU computed; there are no GPUs to transfer anything between.
        limit = f"{proof.simulated} is simulated: nothing travels between its GPUs"
        for id_ in _IDS[2:]:
            yield Check(id=id_, node=node.name, result="simulated", limit=limit)
        return
    if node.gpus == 1:
        yield from _skipped(node, _IDS[2:], "one GPU has no other to sum with")
        return
    pairs = [sum_ for sum_ in proof.collectives if len(sum_.gpus) == 2]
    yield _pairs(node, proof, pairs, known)
    if node.gpus == 2:
        yield from _skipped(node, _IDS[3:], "two GPUs are a pair, see gpu.pairs")
        return
    whole = [sum_ for sum_ in proof.collectives if len(sum_.gpus) == node.gpus]
    yield _all(node, proof, whole, known)


def _skipped(node: Node, ids: Sequence[str], reason: str) -> Iterator[Check]:
    yield from (Check(id=id_, node=node.name, result="skip", reason=reason) for id_ in ids)


def _missing(node: Node, proof: Proof) -> list[str]:
    if proof.error:
        return [proof.error]
    if len(proof.gpus) < node.gpus:
        return [f"{len(proof.gpus)} of {node.gpus} GPUs can be used"]
    return []


def _compute(node: Node, proof: Proof) -> Check:
    reasons = _missing(node, proof)
    reasons += [f"GPU {gpu.index}: {gpu.compute.error}" for gpu in proof.gpus if gpu.compute.error]
    rates = {gpu: gpu.compute.value for gpu in proof.gpus if gpu.compute.value is not None}
    for gpu, rate in rates.items():
        fastest = max(other for peer, other in rates.items() if peer.name == gpu.name)
        if rate < _SLOW * fastest and not proof.simulated:
            reasons.append(
                f"GPU {gpu.index} does {rate:.1f} TFLOP/s and its neighbour {fastest:.1f}: "
                "nvidia-smi -q -d PERFORMANCE"
            )
    return Check(
        id="gpu.compute",
        node=node.name,
        result="fail" if reasons else "pass",
        value=round(min(rates.values()), 3) if rates else None,
        unit="TFLOP/s (FP32), the slowest",
        limit=f"right on {node.gpus} GPU(s), none below {_SLOW:.0%} of the fastest",
        reason="; ".join(reasons),
    )


def _memory(node: Node, proof: Proof) -> Check:
    reasons = _missing(node, proof)
    reasons += [f"GPU {gpu.index}: {gpu.memory.error}" for gpu in proof.gpus if gpu.memory.error]
    held = [gpu.memory.value for gpu in proof.gpus if gpu.memory.value is not None]
    return Check(
        id="gpu.memory",
        node=node.name,
        result="fail" if reasons else "pass",
        value=round(min(held), 3) if held else None,
        unit="GiB of each",
        limit=f"patterns stay as written on {node.gpus} GPU(s)",
        reason="; ".join(reasons),
    )


def _pairs(
    node: Node, proof: Proof, pairs: Sequence[Collective], known: facts.Facts | None
) -> Check:
    wanted = node.gpus * (node.gpus - 1) // 2
    reasons = [] if len(pairs) == wanted else _unsummed(proof, f"{len(pairs)} of {wanted} pairs")
    least = [floors.pair(*_gpus(pair, known), switched=_switched(known)) for pair in pairs]
    return _rated("gpu.pairs", node, pairs, least, reasons)


def _all(node: Node, proof: Proof, whole: Sequence[Collective], known: facts.Facts | None) -> Check:
    reasons = [] if whole else _unsummed(proof, "not all GPUs together")
    least = [floors.together(_gpus(sum_, known), switched=_switched(known)) for sum_ in whole]
    return _rated("gpu.allreduce", node, whole, least, reasons)


def _unsummed(proof: Proof, which: str) -> list[str]:
    return [f"{which} summed with NCCL" + (f": {proof.error}" if proof.error else "")]


def _gpus(sum_: Collective, known: facts.Facts | None) -> list[facts.GPU]:
    told = {gpu.index: gpu for gpu in known.gpus} if known else {}
    return [told.get(index, facts.GPU(pci="", device_id="", index=index)) for index in sum_.gpus]


def _switched(known: facts.Facts | None) -> bool:
    return known is not None and known.fabric


def _slow(sum_: Collective, floor: float, link: str) -> str:
    names = "-".join(f"GPU{index}" for index in sum_.gpus)
    if sum_.rate.error:
        return f"{names}: {sum_.rate.error}"
    rate = sum_.rate.value or 0
    if rate >= floor:
        return ""
    return f"{names}: {rate / 1e9:.1f} GB/s over {link}, {floor / 1e9:.1f} are needed"


def _rated(
    id_: str,
    node: Node,
    sums: Sequence[Collective],
    least: Sequence[tuple[float, str]],
    reasons: Sequence[str],
) -> Check:
    judged = [(sum_, floor, link) for sum_, (floor, link) in zip(sums, least, strict=True)]
    reasons = [*reasons, *filter(None, (_slow(*one) for one in judged))]
    shares = [
        ((sum_.rate.value or 0) / floor, sum_.rate.value or 0, floor) for sum_, floor, _ in judged
    ]
    worst = min(shares, default=None)
    return Check(
        id=id_,
        node=node.name,
        result="fail" if reasons else "pass",
        value=round(worst[1] / 1e9, 1) if worst else None,
        unit="GB/s, the worst",
        limit=f"≥ {worst[2] / 1e9:.1f} GB/s by its connection" if worst else "all sum",
        reason="; ".join(reasons),
    )
