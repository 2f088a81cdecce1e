"""Makes a cluster's folder on the shared file system, and the Python environment in it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from gpubed.backends.slurm import request
from gpubed.core import progress, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes.openssh import Login
from gpubed.recipes import recipe as recipes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.driver import Driver, Properties

MARK = ".gpubed.json"
"""The file in a cluster's folder that says whose it is."""
_BUILD_S = 2 * 3600.0
_NO_PYTHON = 77  # exit code of prepare.sh
_PROOF_S = 300
_TORCH = "import torch, pathlib; pathlib.Path({path!r}).write_text(torch.__version__)"


class Made(BaseModel):
    """What `prepare.sh` says of an environment; `why` it has no Horovod."""

    python: str
    horovod: str
    why: str


class FolderDriver(Driver):
    """Inputs: cluster, uuid, folder."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the folder, for its owner only, or take over what is there."""
        folder = inputs["folder"].replace("~", self._login.home, 1)
        path = request.root(folder, inputs["cluster"], inputs["uuid"])
        mark = json.dumps({"cluster": inputs["cluster"], "uuid": inputs["uuid"]})
        make = "umask 077 && mkdir -p %s/runs %s/datasets %s/checkpoints && cat >%s/" + MARK
        self._login.run(make, path, path, path, path, stdin=mark)
        return path, {"path": path}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Say where it is; None if it is gone."""
        there = self._login.run(f"[ -e %s/{MARK} ] && echo yes || :", id).stdout.strip()
        return {"path": id} if there else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove it with all that is in it."""
        remove(self._login, id, inputs["uuid"])


class EnvironmentDriver(Driver):
    """Inputs: cluster, uuid, folder (the cluster's own), name, recipe."""

    def __init__(self, login: Login, spec: Callable[[], ClusterSpec]) -> None:
        self._login, self._spec = login, spec

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Build it on the host of the login; prove it on a node."""
        spec, root = self._spec(), inputs["folder"]
        asked, recipe = request.config(spec), recipes.load(inputs["recipe"])
        self._login.send(assets(), request.BUILDERS, f"{root}/programs")
        self._login.send(recipe.folder, [recipe.lock.file], root)
        options = ["--gloo"]
        if recipe.horovod.gpu_operations == "nccl":
            options += ["--nccl", *(f"--architecture={one}" for one in recipe.gpus.architectures)]
        if recipe.compiler == "system":
            options += ["--nvcc=NVCC"]
        told = {
            "pythons": " ".join(request.pythons(recipe.name)),
            "horovod": recipe.horovod.version,
            "sha256": recipe.horovod.sha256,
            "standard": recipe.horovod.cxx_standard,
            "options": " ".join(options),
        }
        words = ["env", *(f"{key}={value}" for key, value in told.items())]
        words += ["sh", f"{root}/programs/{request.BUILDERS[0]}", root, inputs["name"]]
        script = request.prelude(asked) + shlex.join(words)
        with progress.overdue("the Python environment is built on the cluster: several minutes"):
            done = self._login.run(script, timeout=_BUILD_S, check=False)
        if done.exit_code:
            hint = "backend.modules or backend.setup of cluster.yml bring one onto the PATH"
            why = f"no Python environment on {self._login.name}: {done.tail}"
            again = f"gpubed up {inputs['cluster']} goes on with it"
            raise GpubedError(why, hint if done.exit_code == _NO_PYTHON else again)
        made = reading.reply(done.stdout.strip().splitlines()[-1], "prepare.sh's answer").json(Made)
        if made.why:
            without = f"Horovod is left out, torch.distributed works: {made.why}"
            progress.emit("note", message=f"{without}, on {self._login.name}")
        self._prove(spec, inputs)
        self._login.run("ln -sfn %s %s/env/current", inputs["name"], root)
        return f"{root}/env/{inputs['name']}", made.model_dump()

    def _prove(self, spec: ClusterSpec, inputs: Properties) -> None:
        """Have a node import torch and write to the folder; a full queue proves nothing."""
        root = inputs["folder"]
        name = request.job_name(inputs["cluster"], inputs["uuid"], "proof")
        python = f"{root}/env/{inputs['name']}/bin/python"
        command = shlex.join([python, "-c", _TORCH.format(path=f"{root}/.proof")])
        options = [f"--job-name={name}", f"--output={root}/proof.log", "--wait"]
        options += [*request.options(spec, 1), "--time=5"]
        script = (
            f"timeout {_PROOF_S} sbatch {shlex.join(options)}; code=$?; scancel --name={name}; "
        )
        script += f"[ $code = 0 ] || cat {root}/proof.log >&2; exit $code"
        job = f"#!/bin/bash -l\n{request.prelude(request.config(spec))}exec {command}\n"
        done = self._login.run(script, timeout=_PROOF_S + 60, check=False, stdin=job)
        if done.exit_code == 124:
            said = f"Slurm started no job within {_PROOF_S} s: nodes are not tried yet"
            progress.emit("note", message=said)
        elif done.exit_code:
            why = f"a job on one node cannot use {root}: {done.tail}"
            raise GpubedError(why, "backend.folder must be on a file system that all nodes share")

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Say what it has; None if it is not complete."""
        said = self._login.run("cat %s/.complete 2>/dev/null || :", id).stdout
        return reading.reply(said, f"{id}/.complete").json(Made).model_dump() if said else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove it."""
        self._login.run("rm -rf %s", id, timeout=_BUILD_S)


def remove(login: Login, path: str, uuid: str) -> None:
    """Remove a cluster's folder, if the mark in it is of this cluster."""
    script = f"if grep -qF %s %s/{MARK} 2>/dev/null; then chmod -R u+rwX %s; rm -rf %s; fi"
    login.run(script, uuid, path, path, path, timeout=_BUILD_S)
