"""Makes the options of `sbatch` and the job's script for a specification."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256

from packaging.specifiers import SpecifierSet

from gpubed.backends.slurm.config import Config
from gpubed.core.paths import assets
from gpubed.nodes.output import SLURM_CANCELLED
from gpubed.recipes import recipe as recipes
from gpubed.recipes.recipe import Recipe
from gpubed.spec.clusterspec import ClusterSpec

PREFIX = "gpubed"
PROGRAMS = (
    "templates/slurm/agent.py",
    "roles/horovod/files/gpubed-environment",
    "roles/horovod/files/gpubed-exit",
    "roles/python_env/files/make_layer.py",
)
"""Programs that are sent with a run, relative to the folder of assets."""
BUILDERS = (
    "templates/slurm/prepare.sh",
    "roles/horovod/files/build_wheel.py",
    "roles/python_env/files/bootstrap.txt",
    "roles/python_env/files/fetch_wheels.py",
    "roles/python_env/files/make_environment.py",
)
"""Programs that build the Python environment."""


def options(spec: ClusterSpec, nodes: int) -> list[str]:
    """Return the options of `sbatch` for a job on a number of nodes."""
    config, group = Config.of(spec.backend), spec.nodes[0]
    names = ("account", "partition", "qos", "constraint")
    values = {name: getattr(config, name) for name in names}
    memory = group.machine.memory
    values |= {
        "nodes": nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": math.ceil(group.machine.cpus or 1),
        "mem": f"{math.ceil(memory / 2**20)}M" if memory else None,
        "gres": f"gpu:{group.gpus.per_node}" if group.gpus.per_node else None,
        "time": math.ceil(spec.lease.duration / 60),
    }
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def names(folder: str, cluster: str, uuid: str, run: str) -> tuple[str, str]:
    """Return a cluster's folder, and the name of a run's job in the queue."""
    return f"{folder}/{cluster}-{uuid[:8]}", f"{PREFIX}.{uuid}.{cluster}.{run}"


def prelude(config: Config) -> str:
    """Return the shell lines that load `modules`, and the lines of `setup`."""
    modules = f"module load {shlex.join(config.modules)} || exit 1\n" if config.modules else ""
    return modules + "".join(f"{line}\n" for line in config.setup)


def script(
    config: Config, python: str, folder: str, environment: Mapping[str, str], words: Sequence[str]
) -> str:
    """Return the job's script, which starts the agent on the first node."""
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
    agent = f"{folder}/.gpubed/{PROGRAMS[0]}"
    return (
        f"#!/bin/bash -l\ncd {folder} && [ ! -e {SLURM_CANCELLED} ] || exit 1\n"
        f"{prelude(config)}{exports}"
        f"exec {shlex.join([f'{python}/bin/python', agent, 'start', *words])}\n"
    )


def pythons(recipe: Recipe) -> list[str]:
    """Return the versions of Python that a recipe supports, such as 3.11, newest first."""
    allowed = SpecifierSet(recipe.python)
    return [version for minor in range(30, 0, -1) if allowed.contains(version := f"3.{minor}")]


def build(recipe: Recipe) -> list[str]:
    """Return the variables of `prepare.sh` as arguments of env(1)."""
    flags, horovod = ["--gloo"], recipe.horovod
    if horovod.gpu_operations == "nccl":
        flags += ["--nccl", *(f"--architecture={name}" for name in recipe.gpus.architectures)]
    flags += ["--nvcc=NVCC"] if recipe.compiler == "system" else []
    return [
        f"pythons={' '.join(pythons(recipe))}",
        f"horovod={horovod.version}",
        f"sha256={horovod.sha256}",
        f"standard={horovod.cxx_standard}",
        f"options={' '.join(flags)}",
    ]


def environment(config: Config, recipe: str) -> dict[str, str]:
    """Return the recipe and the name of a Python environment; the name has a hash of its inputs."""
    files = [(assets() / file).read_bytes() for file in BUILDERS]
    inputs = [recipe, recipes.load(recipe).lock_sha256(), *config.modules, *config.setup]
    digest = sha256(b"\0".join([*map(str.encode, inputs), *files])).hexdigest()[:12]
    return {"recipe": recipe, "name": f"{recipe}-{digest}"}
