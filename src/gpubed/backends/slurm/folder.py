"""Makes a cluster's folder on Slurm's shared file system, with the Python environment of runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from gpubed.backends.slurm import request
from gpubed.backends.slurm.config import Config
from gpubed.core import progress, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes import openssh
from gpubed.nodes.openssh import Login
from gpubed.recipes import recipe as recipes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.driver import Driver, Properties

MARK = ".gpubed"
"""The file in a cluster's folder with its UUID and name."""
_BUILD_S = 2 * 3600.0
_PROOF_S = 300
_NO_PYTHON, _LATE = 77, 124  # exit codes of prepare.sh, and of timeout(1)
_MAKE = f"umask 077 && mkdir -p %s/runs %s/datasets %s/checkpoints && echo %s >%s/{MARK}"
_REMOVE = f"if grep -qF %s %s/{MARK}; then chmod -R u+rwX %s; rm -rf %s; fi 2>/dev/null"


class Made(BaseModel):
    """The output of `prepare.sh`; `why` has the reason if Horovod was not built."""

    python: str
    horovod: str
    why: str


class FolderDriver(Driver):
    """Inputs: cluster, uuid, folder, recipe, name (of the environment)."""

    replace_keys = frozenset({"cluster", "uuid", "folder"})

    def __init__(self, login: Login, spec: Callable[[], ClusterSpec]) -> None:
        self._login, self._spec = login, spec

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the folder, private to the user, and build the environment on the login host."""
        folder = self._login.inside(inputs["folder"])
        path, _ = request.names(folder, inputs["cluster"], inputs["uuid"], "")
        mark = f"{inputs['uuid']} {inputs['cluster']}"
        self._login.run(_MAKE, path, path, path, mark, path)
        return path, self.update(path, inputs, inputs)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the environment's versions; None if there is no environment."""
        output = self._login.run("cat %s/env/current/.complete 2>/dev/null || :", id).stdout
        return reading.reply(output, f"{id}/env").json(Made).model_dump() if output else None

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Build the environment of another recipe or setup, and remove the former one."""
        spec, name = self._spec(), news["name"]
        recipe = recipes.load(news["recipe"])
        openssh.send(self._login.words, assets(), request.BUILDERS, f"{id}/programs")
        openssh.send(self._login.words, recipe.folder, [recipe.lock.file], id)
        words = ["env", *request.build(recipe), "sh", f"{id}/programs/{request.BUILDERS[0]}"]
        script = request.prelude(Config.of(spec.backend)) + shlex.join([*words, id, name])
        with progress.overdue("the Python environment is built on the cluster: several minutes"):
            done = self._login.run(script, timeout=_BUILD_S, check=False)
        if done.exit_code:
            hint = "backend.modules or backend.setup of cluster.yml bring one onto the PATH"
            if done.exit_code != _NO_PYTHON:
                hint = f"gpubed up {news['cluster']} continues it"
            raise GpubedError(f"no Python environment on {self._login.name}: {done.tail}", hint)
        made = reading.reply(done.stdout.strip().splitlines()[-1], "prepare.sh's answer").json(Made)
        if made.why:
            without = f"Horovod is left out, torch.distributed works: {made.why}"
            progress.emit("note", message=f"{without}, on {self._login.name}")
        self._prove(id, news)
        publish = "ln -sfn %s %s/env/current; [ %s = %s ] || rm -rf %s/env/%s"
        self._login.run(publish, name, id, olds["name"], name, id, olds["name"], timeout=_BUILD_S)
        return made.model_dump()

    def _prove(self, path: str, inputs: Properties) -> None:
        """Test the folder and torch on one node, unless the queue is full."""
        spec = self._spec()
        _, name = request.names(path, inputs["cluster"], inputs["uuid"], "proof")
        options = [f"--job-name={name}", f"--output={path}/proof.log", "--wait"]
        options += [*request.options(spec, 1), "--time=5"]
        script = f"timeout {_PROOF_S} sbatch {shlex.join(options)}; code=$?; "
        script += f"scancel --name={name}; [ $code = 0 ] || cat {path}/proof.log >&2; exit $code"
        setup = request.prelude(Config.of(spec.backend))
        job = f"#!/bin/bash -l\n{setup}cd {path} && touch .proof\n"
        job += f"exec {path}/env/{inputs['name']}/bin/python -c 'import torch'\n"
        done = self._login.run(script, timeout=_PROOF_S + 60, check=False, stdin=job)
        if done.exit_code == _LATE:
            message = f"Slurm started no job within {_PROOF_S} s: nodes are not tried yet"
            progress.emit("note", message=message)
        elif done.exit_code:
            why = f"a job on one node cannot use {path}: {done.tail}"
            raise GpubedError(why, "backend.folder must be on a file system that all nodes share")

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the folder with its content, if its mark has the cluster's UUID."""
        self._login.run(_REMOVE, inputs["uuid"], id, id, id, timeout=_BUILD_S)
