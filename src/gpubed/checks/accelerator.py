"""Checks hardware: identified on all nodes; enough GPUs, one driver, no memory errors.

A GPU counts only if it computes; a line in the output of nvidia-smi is not enough.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.gpu_proof import Proof
from gpubed.checks.registry import Stage, at
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import mig_profiles
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH, CommandResult
from gpubed.nodes.verification import Check

_ECC = (
    "nvidia-smi --format=csv,noheader"
    " --query-gpu=index,ecc.mode.current,ecc.errors.uncorrected.volatile.total"
)
_SLICES = "nvidia-smi -L"
_SLICE = re.compile(r"^ +MIG (\S+) +Device", re.MULTILINE)
_IDS = ("gpu.count", "gpu.driver", "gpu.ecc")
_ABSENT = ("[N/A]", "[Not Supported]", "N/A")
# Values of ecc.mode.current for boards without ECC, or with ECC switched off (the default of gaming
# boards). While the mode is Enabled, a missing counter is an error.
_WITHOUT_ECC = {**dict.fromkeys(_ABSENT, "has no ECC"), "Disabled": "has ECC switched off"}


@at(Stage.HARDWARE)
def hardware(context: Context) -> Iterator[Check]:
    """Read each node's hardware from `gpubed-facts`; all of its GPUs are known models."""
    for node in context.allocation.nodes:
        facts = context.facts[node.name]
        repair = "gpubed configure CLUSTER --tags hardware"
        reason = "" if facts else f"gpubed-facts does not answer: {repair}"
        unknown = [gpu for gpu in facts.gpus if gpu.generation is None] if facts else []
        if unknown:
            reason = f"unknown GPUs: {', '.join(gpu.title for gpu in unknown)}"
        value = _described(facts) if facts else None
        yield judged("hardware.identified", node.name, reason, value, "everything has a name")


@at(Stage.HARDWARE)
def gpus(context: Context) -> Iterator[Check]:
    """Compare each node's GPUs with the number that cluster.yml asks for."""
    if not any(node.gpus for node in context.allocation.nodes):
        yield from skipped(_IDS, "the cluster asks for no GPU")
        return

    def counters(node: Node, ssh: SSH) -> CommandResult | None:
        return ssh.run(_ECC, check=False) if node.gpus else None

    errors = dict(context.on_each(counters))
    for node in context.allocation.nodes:
        if node.gpus:
            facts, proof = context.facts[node.name], context.proofs[node.name]
            yield _count(node, facts, proof)
            yield _driver(node, facts, proof)
            yield _ecc(node, proof, errors[node])
        else:
            yield from skipped(_IDS, "asks for no GPU", node.name)


@at(Stage.HARDWARE)
def slices(context: Context) -> Iterator[Check]:
    """Count the MIG slices of each node whose GPUs are to be cut, and look at their size."""
    if not any(node.mig for node in context.allocation.nodes):
        yield from skipped(["gpu.slices"], "the cluster cuts no GPU")
        return
    for node, answer in context.on_each(lambda _, ssh: ssh.run(_SLICES, check=False)):
        if node.mig is None:
            yield from skipped(["gpu.slices"], "its GPUs are not to be cut", node.name)
            continue
        facts, found = context.facts[node.name], Counter(_SLICE.findall(answer.stdout))
        gpus = facts.gpus[: node.gpus] if facts else ()
        wanted = {node.mig: sum(mig_profiles(gpu.title).get(node.mig, 1) for gpu in gpus)}
        there = ", ".join(f"{count} x {profile}" for profile, count in found.items())
        reason = "" if found == wanted else "run gpubed configure CLUSTER --tags nvidia_driver"
        limit = f"{wanted[node.mig]} x {node.mig}"
        yield judged("gpu.slices", node.name, reason, there or "none", limit)


def _described(facts: Facts) -> str:
    parts = [f"{count} x {title}" for title, count in Counter(g.title for g in facts.gpus).items()]
    parts += [f"{len(facts.nvswitches)} NVSwitches"] if facts.nvswitches else []
    parts += [f"HCA {hca.name}" for hca in facts.hcas]
    parts += [f"{len(facts.interfaces)} interfaces", f"{len(facts.disks)} disks"]
    return ", ".join([f"{facts.cpus} CPUs", *parts])


def _count(node: Node, facts: Facts | None, proof: Proof) -> Check:
    on_bus = facts.gpus if facts else ()
    # A slice is no GPU: each of a cut GPU's computes by itself, see gpu.compute.
    computing = min(len(proof.computing), node.gpus) if node.mig else len(proof.computing)
    reason = ""
    if computing < node.gpus:
        reason = (
            f"cluster.yml asks for {node.gpus} GPU(s) and {computing} compute(s); "
            f"{len(on_bus)} are on the PCI bus: "
            f"{', '.join(f'{gpu.title} at {gpu.pci}' for gpu in on_bus) or 'none'}"
        )
    return judged("gpu.count", node.name, reason, computing, f"{node.gpus}", "GPUs")


def _driver(node: Node, facts: Facts | None, proof: Proof) -> Check:
    loaded = {gpu.driver for gpu in facts.gpus} | {facts.driver.loaded} if facts else set()
    versions, reason = sorted(filter(None, loaded)), ""
    if len(versions) != 1:
        reason = f"kernel and library report {', '.join(versions) or 'no version'}"
    elif not proof.computing:
        reason = "no GPU computes with it, see gpu.compute"
    limit = "kernel and library agree, and GPUs compute with it"
    return judged("gpu.driver", node.name, reason, ", ".join(versions) or None, limit)


def _counters(rows: list[list[str]]) -> tuple[list[int], list[str], list[str]]:
    counts, without, unread = [], [], []
    for index, *cells in rows:
        mode, count = cells if len(cells) == 2 else ("", "")
        if mode in _WITHOUT_ECC and count in _ABSENT:
            without.append(f"GPU {index} {_WITHOUT_ECC[mode]}")
        elif (errors := answers.whole(count)) is not None:
            counts.append(errors)
        else:
            unread.append(f"GPU {index}: {' '.join(cells) or 'nothing'}")
    return counts, without, unread


def _ecc(node: Node, proof: Proof, answer: CommandResult | None) -> Check:
    lines = answer.stdout.splitlines() if answer else []
    # Ranks use the first GPUs; the others may be of any kind, such as a GPU for the screen.
    rows = [line.split(", ") for line in lines[: node.gpus]]
    counts, without, unread = _counters(rows)
    if counts:
        unread += without
    if answer and answer.exit_code:
        unread.append(answer.tail)
    if len(rows) < node.gpus:
        unread.append(f"{len(rows)} of {node.gpus} GPUs answer")
    if not (counts or unread):
        return Check(id="gpu.ecc", node=node.name, result="skip", reason="; ".join(without))
    reason = ""
    if unread:
        reason = f"the counters cannot be read ({'; '.join(unread)}); nvidia-smi --ecc-config=1"
    elif sum(counts):
        reason = "replace the GPU or reset it"
    elif not proof.computing:
        reason = "the GPUs do not compute, see gpu.compute"
    value, limit = sum(counts) if counts else None, "0, as the driver counts them"
    return judged("gpu.ecc", node.name, reason, value, limit, "uncorrected errors")
