"""What is asked of Slurm for a specification: options of `sbatch`, and the job's script."""

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
"""What a run takes along, below the folder of assets."""
BUILDERS = (
    "templates/slurm/prepare.sh",
    "roles/horovod/files/build_wheel.py",
    "roles/python_env/files/bootstrap.txt",
    "roles/python_env/files/fetch_wheels.py",
    "roles/python_env/files/make_environment.py",
)
"""What makes the Python environment."""


def options(spec: ClusterSpec, nodes: int) -> list[str]:
    """Return the options of `sbatch` for a job on a number of nodes."""
    asked, group = Config.of(spec.backend), spec.nodes[0]
    said = {name: getattr(asked, name) for name in ("account", "partition", "qos", "constraint")}
    memory = group.machine.memory
    said |= {
        "nodes": nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": math.ceil(group.machine.cpus or 1),
        "mem": f"{math.ceil(memory / 2**20)}M" if memory else None,
        "gres": f"gpu:{group.gpus}" if group.gpus else None,
        "time": math.ceil(spec.lease.duration / 60),
    }
    return [f"--{name}={value}" for name, value in said.items() if value is not None]


def names(folder: str, cluster: str, uuid: str, run: str) -> tuple[str, str]:
    """Return a cluster's own folder, and the name of a run's job in the queue."""
    return f"{folder}/{cluster}-{uuid[:8]}", f"{PREFIX}.{uuid}.{cluster}.{run}"


def prelude(asked: Config) -> str:
    """Return the shell lines that load modules and run the user's own."""
    modules = f"module load {shlex.join(asked.modules)} || exit 1\n" if asked.modules else ""
    return modules + "".join(f"{line}\n" for line in asked.setup)


def script(
    asked: Config, python: str, folder: str, environment: Mapping[str, str], words: Sequence[str]
) -> str:
    """Return the job's script, which starts the agent of its first node."""
    exports = "".join(f"export {key}={shlex.quote(one)}\n" for key, one in environment.items())
    agent = f"{folder}/.gpubed/{PROGRAMS[0]}"
    return (
        f"#!/bin/bash -l\ncd {folder} && [ ! -e {SLURM_CANCELLED} ] || exit 1\n"
        f"{prelude(asked)}{exports}"
        f"exec {shlex.join([f'{python}/bin/python', agent, 'start', *words])}\n"
    )


def pythons(recipe: Recipe) -> list[str]:
    """Return the versions of Python that a recipe goes with, such as 3.11, newest first."""
    allowed = SpecifierSet(recipe.python)
    return [one for minor in range(30, 0, -1) if allowed.contains(one := f"3.{minor}")]


def build(recipe: Recipe) -> list[str]:
    """Return the variables of `prepare.sh`, as words of env(1)."""
    flags, horovod = ["--gloo"], recipe.horovod
    if horovod.gpu_operations == "nccl":
        flags += ["--nccl", *(f"--architecture={one}" for one in recipe.gpus.architectures)]
    flags += ["--nvcc=NVCC"] if recipe.compiler == "system" else []
    return [
        f"pythons={' '.join(pythons(recipe))}",
        f"horovod={horovod.version}",
        f"sha256={horovod.sha256}",
        f"standard={horovod.cxx_standard}",
        f"options={' '.join(flags)}",
    ]


def environment(asked: Config, recipe: str) -> dict[str, str]:
    """Return what decides the content of a Python environment, and its name."""
    files = [(assets() / one).read_bytes() for one in BUILDERS]
    said = [recipe, recipes.load(recipe).lock_sha256(), *asked.modules, *asked.setup]
    digest = sha256(b"\0".join([*map(str.encode, said), *files])).hexdigest()[:12]
    return {"recipe": recipe, "name": f"{recipe}-{digest}"}
