"""Lists GPULab's workers, and tells whether jobs can run there, ever or now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpubed.backends.gpulab import request
from gpubed.backends.gpulab.client import Cluster, Worker
from gpubed.backends.gpulab.config import Config
from gpubed.backends.gpulab.request import Resources
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Offer


def offers(clusters: Sequence[Cluster], workers: Sequence[Worker]) -> list[Offer]:
    """Return one offer per cluster; `total` and `free` count workers."""
    own: dict[int, list[Worker]] = defaultdict(list)
    for worker in workers:
        own[worker.cluster_id].append(worker)
    ordered = sorted(clusters, key=lambda c: c.cluster_id)
    return [_offer(cluster, own[cluster.cluster_id]) for cluster in ordered]


def _offer(cluster: Cluster, own: Sequence[Worker]) -> Offer:
    idle = [
        w
        for w in own
        if w.accepting_jobs and not w.shutting_down and w.gpu.available == w.gpu.system_total
    ]
    notes = [f"{cluster.gpu.available} of {cluster.gpu.system_total} GPUs free"]
    if cluster.comment:
        notes.append(cluster.comment)
    if cluster.have_access is False:
        notes.append("no access")
    return Offer(
        name=str(cluster.cluster_id),
        total=len(own) or cluster.slave_count,
        free=len(idle),
        gpus=max((worker.gpu.system_total for worker in own), default=None),
        gpu_model=", ".join(dict.fromkeys(gpu.name for gpu in cluster.gpu_model)),
        note="; ".join(notes),
    )


def impossible(
    plan: ClusterPlan, clusters: Sequence[Cluster], workers: Sequence[Worker]
) -> list[str]:
    """Return why no worker can run some jobs of a plan; empty if all can run."""
    storage = Config.of(plan.spec.backend).storage
    needs = [request.resources(plan, node) for node in plan.nodes]
    return [
        why for why in dict.fromkeys(never(n, storage, clusters, workers) for n in needs) if why
    ]


def never(
    wanted: Resources, storage: str | None, clusters: Sequence[Cluster], workers: Sequence[Worker]
) -> str:
    """Return why no worker can run a job; empty if one can.

    A job waits until a single worker has all of its resources.
    """
    if wanted.cluster_id is not None:
        [*named] = [c for c in clusters if c.cluster_id == wanted.cluster_id]
        if not named:
            known = ", ".join(str(c.cluster_id) for c in clusters)
            return f"there is no cluster {wanted.cluster_id}; there are: {known}"
        if named[0].have_access is False:
            return f"your project may not use cluster {wanted.cluster_id}"
    mine = _candidates(wanted, clusters, workers)
    where = f"cluster {wanted.cluster_id}" if wanted.cluster_id is not None else "GPULab"
    if not mine:
        return f"no worker of {where} has a GPU like {' or '.join(wanted.gpu_model)}"
    ids = {worker.cluster_id for worker in mine}
    paths = [c.storage_paths_available for c in clusters if c.cluster_id in ids]
    if storage and not any(
        known is None or any(f"{storage}/".startswith(path.rstrip("/") + "/") for path in known)
        for known in paths
    ):
        there = ", ".join(sorted({path for known in paths for path in known or ()})) or "none"
        return f"storage {storage} is not on those clusters; there is: {there}"
    most = max(worker.gpu.system_total for worker in mine)
    if most < wanted.gpus:
        return (
            f"a job's GPUs are all on one worker, and no worker of {where} has "
            f"{wanted.gpus} of them (the largest has {most})"
        )
    if any(_has(worker, wanted) for worker in mine):
        return ""
    cuda = f" and CUDA {wanted.min_cuda_version}" if wanted.min_cuda_version else ""
    sizes = f"{wanted.cpus} CPUs and {wanted.cpu_memory_gb} GB besides {wanted.gpus} GPUs"
    return f"no worker of {where} has {sizes}{cuda}"


def now(
    wanted: Resources, jobs: int, clusters: Sequence[Cluster], workers: Sequence[Worker]
) -> str:
    """Return how many of the jobs would have to wait now; empty if all would start."""
    room = 0
    for worker in _candidates(wanted, clusters, workers):
        if worker.accepting_jobs and not worker.shutting_down and _has(worker, wanted):
            room += min(
                worker.gpu.available // wanted.gpus if wanted.gpus else jobs,
                worker.cpu.available // wanted.cpus,
                worker.cpu_memory_mb.available // (1000 * wanted.cpu_memory_gb),
            )
    return "" if room >= jobs else f"{room} of {jobs} job(s) would start now, the rest would wait"


def _candidates(
    wanted: Resources, clusters: Sequence[Cluster], workers: Sequence[Worker]
) -> list[Worker]:
    usable = {c.cluster_id for c in clusters if c.have_access is not False}
    if wanted.cluster_id is not None:
        usable &= {wanted.cluster_id}
    # `gpu_model` has parts of names, of which one must match; case does not matter.
    parts = [part.lower() for part in wanted.gpu_model] if wanted.gpus else []
    return [
        w
        for w in workers
        if w.cluster_id in usable
        and (not parts or any(part in gpu.name.lower() for part in parts for gpu in w.gpu_model))
    ]


def _has(worker: Worker, wanted: Resources) -> bool:
    return (
        worker.gpu.system_total >= wanted.gpus
        and worker.cpu.system_total >= wanted.cpus
        and worker.cpu_memory_mb.system_total >= 1000 * wanted.cpu_memory_gb
        and (
            wanted.min_cuda_version is None
            or worker.cuda_version_major is None
            or worker.cuda_version_major >= wanted.min_cuda_version
        )
    )
