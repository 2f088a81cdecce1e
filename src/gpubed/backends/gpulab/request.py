"""Makes the GPULab job for a specification."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from gpubed.backends.gpulab import parcel
from gpubed.backends.gpulab.config import Config
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.paths import assets
from gpubed.recipes import recipe
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.spec.sections import Machine, registry_of
from gpubed.testbeds.base import Task

_GB = 10**9
_START_S = "180"  # on a busy worker, importing torch takes longer than Horovod's default, 30 s
# A world is one container; torch.distributed and torchrun use these variables.
_ALONE = {
    "GPUBED_NODE": "localhost",
    "GPUBED_ADDRESS": "127.0.0.1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


class Resources(NamedTuple):
    """Resources of a job, on one worker; memory in GB."""

    cpus: int
    gpus: int
    cpu_memory_gb: int
    gpu_model: Sequence[str] = ()
    min_cuda_version: int | None = None
    cluster_id: int | None = None


def label(cluster: str, uuid: str) -> str:
    """Return the labels in the description of each of a cluster's jobs."""
    return f"gpubed.cluster={uuid} gpubed.name={cluster}"


def folder(spec: ClusterSpec, run_id: str) -> str:
    """Return the run's folder in the container, on project storage if that is mounted."""
    root = spec.storage.shared.path if Config.of(spec.backend).storage else "/tmp/gpubed"  # noqa: S108
    return f"{root}/runs/{run_id}"


def resources(plan: ClusterPlan, node: NodePlan) -> Resources:
    """Return the resources of a node's job; the recipe determines the version of CUDA."""
    options, cuda = Config.of(plan.spec.backend), recipe.load(plan.spec.recipe).cuda
    cpus, memory = amounts(node.machine)
    return Resources(
        cpus=cpus,
        gpus=node.gpus,
        cpu_memory_gb=memory,
        gpu_model=options.gpu_model,
        min_cuda_version=int(cuda.split(".")[0]) if cuda and node.gpus else None,
        cluster_id=options.cluster,
    )


def amounts(machine: Machine) -> tuple[int, int]:
    """Return CPUs and memory (in GB, rounded up); raise ValueError for fractions of CPUs."""
    if machine.cpus is None or machine.memory is None:
        raise ValueError("GPULab must be told cpus and memory")
    if machine.cpus != int(machine.cpus):
        raise ValueError(f"cpus is {machine.cpus:g}, but GPULab gives whole CPUs")
    return int(machine.cpus), math.ceil(machine.memory / _GB)


# Like gpubed-rank on nodes: gives each rank its GPU, and records the GPU's model, since workers
# differ. An image may preset both variables.
_ON_ITS_GPU = (
    "sh",
    "-c",
    "device=${GPUBED_DEVICE:-cuda:$HOROVOD_LOCAL_RANK} model=; "
    "case $device in cuda:*) "
    'model=$(nvidia-smi --query-gpu=name --format=csv,noheader --id="${device#cuda:}") ;; esac; '
    'exec env GPUBED_DEVICE="$device" '
    'GPUBED_DEVICE_NAME="${GPUBED_DEVICE_NAME:-${model:+cuda:$model}}" "$@"',
    "-",
)


def render(
    plan: ClusterPlan,
    node: NodePlan,
    *,
    name: str,
    labels: str,
    project_urn: str,
    task: Task,
    command: Sequence[str],
    environment: Mapping[str, str],
    mark: str,
) -> dict[str, Any]:
    """Return the job (the body of `POST jobs`) that runs a command on each of a node's slots.

    Args:
        name: A unique name, by which the job can be found.
        mark: The prefix of log lines with results.
    """
    options, storage = Config.of(plan.spec.backend), plan.spec.storage
    if task.image:
        try:
            options = Config.model_validate({**options.model_dump(), "image": task.image})
        except ValidationError as error:
            raise UsageError(f"image: {error.errors()[0]['msg']}") from None
    wanted = resources(plan, node)
    machine: dict[str, Any] = {
        "cpus": wanted.cpus,
        "gpus": wanted.gpus,
        "cpuMemoryGb": wanted.cpu_memory_gb,
        "gpuModel": wanted.gpu_model,
        "minCudaVersion": wanted.min_cuda_version,
        "clusterId": wanted.cluster_id,
    }
    mounts: list[dict[str, Any]] = []
    if options.storage:
        mounts.append({"hostPath": options.storage, "containerPath": storage.shared.path})
    if storage.scratch:
        mounts.append({"hostPath": "/project_scratch", "containerPath": storage.scratch.path})
    memory = math.ceil(options.shm / _GB)
    mounts.append({"hostPath": "tmpfs", "containerPath": "/dev/shm", "sizeGb": memory})  # noqa: S108
    return {
        "name": name,
        "description": labels,
        "request": {
            "resources": {key: value for key, value in machine.items() if value is not None},
            "docker": {
                "image": _with_login(options),
                "command": _command(node, command, environment["GPUBED_RUN_DIR"], mark, task),
                "environment": {**environment, **_ALONE, "HOROVOD_GLOO_TIMEOUT_SECONDS": _START_S},
                "storage": mounts,
            },
            "scheduling": {
                "interactive": False,
                "restartable": False,
                "maxDuration": f"{math.ceil(plan.spec.lease.duration / 60)} minutes",
            },
        },
        "owner": {"projectUrn": project_urn},
        "deploymentEnvironment": options.environment,
    }


def _with_login(options: Config) -> str:
    """Return the image as `user:password@image` (gpulab-common 6.0) if its registry has a login."""
    registry = registry_of(options.image)
    if not (login := options.registries.get(registry)):
        return options.image
    where = f"backend.registries.{registry}"
    password = login.password(where)
    if not re.fullmatch(r"[^\s@/]+", password):
        raise PrerequisiteMissing(
            f"the password of {login.user} at {registry} is empty, or has white space, '@' or '/', "
            "which an image's name at GPULab cannot have",
            f"make a token of that registry, and write it to the file of {where}",
        )
    return f"{login.user}:{password}@{options.image}"


def _command(
    node: NodePlan, command: Sequence[str], folder: str, mark: str, task: Task
) -> tuple[str, ...]:
    slots = "1" if task.per_node else str(node.slots)
    local = ["horovodrun", "--gloo", "--start-timeout", _START_S, "-np", slots]
    local += ["-H", f"localhost:{slots}"]
    local += _ON_ITS_GPU if node.gpus and not task.per_node else ()
    # As on nodes, keeps the environment of the first rank with the run.
    program = assets() / "roles/horovod/files/gpubed-environment"
    local += ("sh", "-c", program.read_text(encoding="utf-8"), program.name)
    settings = {
        "folder": folder,
        "command": [*local, *command],
        "mark": mark,
        "limit": parcel.LIMIT,
    }
    container = (assets() / "templates/gpulab/container.py").read_text(encoding="utf-8")
    hostfile = {"hostfile": f"localhost slots={node.slots}\n"}
    bundle = parcel.pack(task.source, task.names, hostfile, follow=task.follow)
    return ("python3", "-u", "-c", container, json.dumps(settings), bundle)
