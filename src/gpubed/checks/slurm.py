"""Checks Slurm: nodes trust each other, accept jobs, offer their GPUs, and run a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.hardware.table import mig_profiles
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

# States of a node that runs jobs, or could. Planned: reserved for the next job of the queue, also
# marked by - at the end of other states.
_ABLE = {"idle", "allocated", "mixed", "completing", "planned"}
_PLANNED, _MAINTAINED = "-", "$"
_NODES = "sinfo --noheader --Node --format '%N|%T|%G|%E' | sort -u"
# A credential that only root may decode.
_CREDENTIAL = "munge --no-input --restrict-uid=0"
_DECODE = "sudo --non-interactive unmunge"
_STEP = (
    "timeout 50 srun --nodes=%s --ntasks-per-node=1 --partition=%s --time=1 --immediate=20 hostname"
)
_ACCOUNTING = "timeout 20 sacctmgr --noheader --parsable2 show cluster format=cluster"
# Prints the GPU, or the part of one, that a job sees, and its rank's device; gpubed-rank fails if
# it is unusable.
_GPU_JOB = (
    "timeout 50 srun --nodelist=%s --partition=%s --ntasks=1 --gres=%s:1 --time=1 --immediate=20 "
    "gpubed-rank sh -c 'echo \"$CUDA_VISIBLE_DEVICES|$GPUBED_DEVICE_NAME\"'"
)
_IDS = ("slurm.munge", "slurm.node", "slurm.gpus", "slurm.step", "slurm.accounting")


@at(Stage.SERVICES, "slurm.munge", "slurm.node", "slurm.step", "slurm.accounting")
def slurm(context: Context) -> Iterator[Check]:
    """Check the nodes and their GPUs, run a step in each partition, ask the accounting."""
    if context.plan.spec.services.slurm is None:
        yield from skipped(_IDS, "the cluster has no Slurm")
        return
    yield from _munge(context)
    answer = context.head.run(_NODES, check=False)
    if answer.exit_code != 0:
        reason = f"the controller does not answer: {answer.stderr.strip()[-200:]}"
        yield judged("slurm.node", context.allocation.head.name, reason)
        return
    # The reason, the last column, is free text that may contain a bar.
    lines = (line.split("|", 3) for line in answer.stdout.splitlines() if line.count("|") >= 3)
    rows = {row[0]: row[1:] for row in lines}
    for node in context.allocation.nodes:
        state, gpus, reason = rows.get(node.name, ("absent", "", "slurm.conf does not name it"))
        yield _state(node, state, reason)
        yield _gpus(context, node, state, gpus)
    yield from _steps(context, {name for name, row in rows.items() if row[0] == "idle"})
    done = context.head.run(_ACCOUNTING, check=False)
    why = "jobs run, but their records wait; on the head: systemctl status slurmdbd mariadb"
    head = context.allocation.head.name
    yield judged("slurm.accounting", head, why if done.exit_code else "", limit="answers")


def _munge(context: Context) -> Iterator[Check]:
    head = context.allocation.head.name
    credential = context.head.run(_CREDENTIAL, check=False).stdout

    def decode(_: Node, ssh: SSH) -> str:
        done = ssh.run(_DECODE, check=False, stdin=credential)
        return "" if done.exit_code == 0 else done.stderr.strip() or "without a reason"

    then = "key or clock differ; gpubed configure CLUSTER --tags slurm"
    for node, refusal in context.on_each(decode):
        reason = f"a credential of {head} is refused ({refusal}): {then}" if refusal else ""
        yield judged("slurm.munge", node.name, reason, limit=f"takes a credential of {head}")


def _state(node: Node, state: str, reason: str) -> Check:
    # Other marks mean that the node does not answer (*), is powered down (~) and so on.
    able = state.removesuffix(_PLANNED) in _ABLE
    if state in ("reserved", "maint") or state.endswith(_MAINTAINED):
        help_ = "it is reserved: scontrol show reservation"
    else:
        help_ = f"{reason}; journalctl -u slurmd there, then scontrol update"
    return judged("slurm.node", node.name, "" if able else help_, state, "idle or at work")


def _gpus(context: Context, node: Node, state: str, gres: str) -> Check:
    if not node.gpus:
        return Check(id="slurm.gpus", node=node.name, result="skip", reason="asks for no GPU")
    # Entries such as gpu:2 or gpu:nvidia_h100:2(S:0-1), separated by commas.
    found = Counter[str]()
    for name, *words in (entry.split("(")[0].split(":") for entry in gres.split(",")):
        found[name] += answers.whole(words[-1]) or 0 if words else 0
    # Who asks for a GPU gets no slice of one: these have a name of their own.
    facts, kind, wanted = context.facts[node.name], "gpu", {"gpu": node.gpus}
    if node.mig and facts:
        gpus = facts.gpus[: node.gpus]
        count = sum(mig_profiles(gpu.title).get(node.mig, 1) for gpu in gpus)
        kind, wanted = "slice", {"slice": count}
    elif node.shards:
        kind, wanted = "shard", {"gpu": node.gpus, "shard": node.gpus * node.shards}
    if found != wanted:
        reason = f"Slurm offers {gres}, and not {_listed(wanted)}"
    else:
        reason = _gpu_job(context, node, kind) if state == "idle" else ""
    part = kind.replace("gpu", "GPU")
    tried = f"a job with one {part} computes{'' if state == 'idle' else f' (not tried: {state})'}"
    limit = f"{_listed(wanted)}; {tried}"
    return judged("slurm.gpus", node.name, reason, found[kind], limit, f"{part}s")


def _listed(counts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _gpu_job(context: Context, node: Node, kind: str) -> str:
    service = context.plan.spec.services.slurm
    partition = service.partition_of([node.group]) if service else None
    if partition is None:
        return f"no partition has group {node.group}: see services.slurm.partitions"
    done = context.head.run(_GPU_JOB, node.name, partition, kind, check=False)
    part = kind.replace("gpu", "GPU")
    if done.exit_code:
        return f"a job with one {part} fails: {done.tail}"
    visible, _, device = done.stdout.strip().partition("|")
    if len(visible.split(",")) != 1 or not visible or (kind == "slice" and visible[:4] != "MIG-"):
        return f"a job with one {part} sees {visible or 'none'}"
    if not device.startswith("cuda") and node.name not in context.simulated:
        return f"a job with one {part} computes on {device or 'nothing'}"
    return ""


def _steps(context: Context, idle: set[str]) -> Iterator[Check]:
    service = context.plan.spec.services.slurm
    for partition in service.partitions if service else ():
        members = {
            node.name
            for node in context.allocation.nodes
            if not partition.groups or node.group in partition.groups
        }
        if members - idle:
            why = f"{partition.name}: busy or absent: {', '.join(sorted(members - idle))}"
            yield Check(id="slurm.step", result="skip", reason=why)
            continue
        done = context.head.run(_STEP, len(members), partition.name, check=False)
        ran = set(done.stdout.split())
        why = "" if ran == members else done.stderr.strip()[-300:] or "not every node ran it"
        limit = f"{len(members)} of partition {partition.name}"
        yield judged("slurm.step", "", why, len(ran), limit, "nodes")
