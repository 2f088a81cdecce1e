"""Checks that each GPU computes and stores correctly, and NCCL's sums are as fast as the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.gpu_proof import Collective, Proof
from gpubed.checks.registry import Stage, at
from gpubed.hardware import facts, minimum_bandwidth
from gpubed.nodes.allocation import Node
from gpubed.nodes.verification import Check

_IDS = ("gpu.compute", "gpu.memory", "gpu.pairs", "gpu.allreduce")
# Least share of the rate of the node's fastest GPU of the same model; throttled GPUs are far below.
_SLOW = 0.7


@at(Stage.HARDWARE)
def compute(context: Context) -> Iterator[Check]:
    """Judge the results of each node's GPUs."""
    if not any(node.gpus for node in context.allocation.nodes):
        yield from skipped(_IDS, "the cluster asks for no GPU")
        return
    for node in context.allocation.nodes:
        if node.gpus:
            yield from on_node(node, context.proofs[node.name], context.facts[node.name])
        else:
            yield from skipped(_IDS, "asks for no GPU", node.name)


def on_node(node: Node, proof: Proof, known: facts.Facts | None) -> Iterator[Check]:
    """Judge the GPUs of one node; its facts, if known, tell how they are connected."""
    yield _compute(node, proof)
    yield _memory(node, proof)
    if node.mig:
        yield from skipped(_IDS[2:], "its GPUs are cut: slices do not sum with NCCL", node.name)
        return
    if proof.simulated:
        # The CPU computed, so no data went between GPUs.
        limit = f"{proof.simulated} is simulated: nothing travels between its GPUs"
        for id_ in _IDS[2:]:
            yield Check(id=id_, node=node.name, result="simulated", limit=limit)
        return
    if node.gpus == 1:
        yield from skipped(_IDS[2:], "one GPU has no other to sum with", node.name)
        return
    fast = known is not None and known.fabric
    pairs = [sum_ for sum_ in proof.collectives if len(sum_.gpus) == 2]
    wanted = node.gpus * (node.gpus - 1) // 2
    lacking = f"{len(pairs)} of {wanted} pairs" if len(pairs) != wanted else ""
    floor = [minimum_bandwidth.pair(*_gpus(pair, known), switched=fast) for pair in pairs]
    yield _rated("gpu.pairs", node, proof, pairs, floor, lacking)
    if node.gpus == 2:
        yield from skipped(_IDS[3:], "two GPUs are a pair, see gpu.pairs", node.name)
        return
    whole = [sum_ for sum_ in proof.collectives if len(sum_.gpus) == node.gpus]
    floor = [minimum_bandwidth.together(_gpus(sum_, known), switched=fast) for sum_ in whole]
    lacking = "" if whole else "not all GPUs together"
    yield _rated("gpu.allreduce", node, proof, whole, floor, lacking)


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
    slowest = round(min(rates.values()), 3) if rates else None
    limit = f"right on {node.gpus} GPU(s), none below {_SLOW:.0%} of the fastest"
    unit = "TFLOP/s (FP32), the slowest"
    return judged("gpu.compute", node.name, "; ".join(reasons), slowest, limit, unit)


def _memory(node: Node, proof: Proof) -> Check:
    reasons = _missing(node, proof)
    reasons += [f"GPU {gpu.index}: {gpu.memory.error}" for gpu in proof.gpus if gpu.memory.error]
    held = [gpu.memory.value for gpu in proof.gpus if gpu.memory.value is not None]
    least = round(min(held), 3) if held else None
    limit = f"patterns stay as written on {node.gpus} GPU(s)"
    return judged("gpu.memory", node.name, "; ".join(reasons), least, limit, "GiB of each")


def _gpus(sum_: Collective, known: facts.Facts | None) -> list[facts.GPU]:
    told = {gpu.index: gpu for gpu in known.gpus} if known else {}
    return [told.get(index, facts.GPU(pci="", device_id="", index=index)) for index in sum_.gpus]


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
    proof: Proof,
    sums: Sequence[Collective],
    least: Sequence[tuple[float, str]],
    lacking: str,
) -> Check:
    error = f": {proof.error}" if proof.error else ""
    reasons = [f"{lacking} summed with NCCL{error}"] if lacking else []
    reasons += filter(None, (_slow(sum_, *one) for sum_, one in zip(sums, least, strict=True)))
    rates = [(sum_.rate.value or 0, floor) for sum_, (floor, _) in zip(sums, least, strict=True)]
    rate, floor = min(rates, key=lambda one: one[0] / one[1], default=(None, 0.0))
    value = None if rate is None else round(rate / 1e9, 1)
    limit = "all sum" if rate is None else f"≥ {floor / 1e9:.1f} GB/s by its connection"
    return judged(id_, node.name, "; ".join(reasons), value, limit, "GB/s, the worst")
