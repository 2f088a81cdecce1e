"""Checks a recipe against its own files, the package index, its packages, and nodes.

uv and pip read the index with the user's own configuration. `measure` downloads the packages with
GPU code, about 3 GB for a recipe.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.utils import canonicalize_name

from gpubed.checks import software
from gpubed.checks.context import Context
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check, Result
from gpubed.recipes import fatbin
from gpubed.recipes import recipe as recipes
from gpubed.recipes.fatbin import Architectures
from gpubed.recipes.recipe import Locked, Recipe

_RESOLVE = shlex.split(
    "pip compile --quiet --universal --generate-hashes --no-deps --no-annotate --no-header "
    "--no-emit-index-url --python-version 3.11 -"
)
_DOWNLOAD = shlex.split("pip download --quiet --no-deps --require-hashes --only-binary :all:")
_WITH_GPU_CODE = ("torch", "nvidia-")
_HERE = {key: str(value) for key, value in default_environment().items()}


def check(recipe: Recipe) -> Iterator[Check]:
    """Check a recipe against its own files and the package index."""
    sha256, why = recipe.lock_sha256(), ""
    if sha256 != recipe.lock.sha256:
        why = f"write the lock's checksum into {recipe.folder / 'recipe.yml'}"
    yield _judged("lock.checksum", why, sha256, recipe.lock.sha256, "")
    yield _lock_is_complete(recipe)
    yield _lock_resolves(recipe)
    yield _packages_serve_the_gpus(recipe)


def check_nodes(recipe: Recipe, cluster: Cluster) -> Iterator[Check]:
    """Compare the nodes of a cluster with a recipe, which need not be the cluster's own."""
    plan, nodes = cluster.plan, cluster.allocation.nodes
    spec = plan.spec.model_copy(update={"recipe": recipe.name})
    with ExitStack() as stack:
        sessions = {n.name: stack.enter_context(SSH(n, cluster.paths)) for n in nodes}
        changed = replace(cluster, plan=plan.model_copy(update={"spec": spec}))
        context = Context(changed, sessions)
        yield from software.packages(context)
        yield from software.gpus(context)


def measure(recipe: Recipe) -> Iterator[tuple[str, dict[str, Architectures]]]:
    """Download each package that may have GPU code; yield its name and its architectures."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PrerequisiteMissing(
            "packages can be measured only on Linux on x86-64, the platform of nodes",
            "run this on such a machine",
        )
    for entry in with_gpu_code(recipe):
        with tempfile.TemporaryDirectory(prefix="gpubed-wheel-") as folder:
            requirements = Path(folder) / "wanted.txt"
            hashes = " ".join(f"--hash={text}" for text in entry.hashes)
            requirements.write_text(f"{entry} {hashes}\n", encoding="utf-8")
            words = ["--dest", folder, "-r", str(requirements)]
            done = _run([sys.executable, "-m", *_DOWNLOAD, *words])
            if done.returncode:
                raise GpubedError(f"{entry} cannot be downloaded:\n{done.stderr.strip()[-600:]}")
            yield str(entry), fatbin.of_wheel(next(Path(folder).glob("*.whl")))


def with_gpu_code(recipe: Recipe) -> list[Locked]:
    """Return the packages of a recipe that may have GPU code; none without GPUs."""
    platform_ = {**_HERE, "sys_platform": "linux", "platform_machine": "x86_64"}
    return [
        entry
        for entry in (recipe.locked() if recipe.gpus.architectures else ())
        if entry.name.startswith(_WITH_GPU_CODE) and entry.applies(platform_)
    ]


def _judged(id_: str, reason: str, value: int | str, limit: str, unit: str = "packages") -> Check:
    result: Result = "fail" if reason else "pass"
    return Check(id=id_, result=result, value=value, unit=unit, limit=limit, reason=reason)


def _lock_is_complete(recipe: Recipe) -> Check:
    wanted, locked = recipe.wanted(), {entry.name: entry.version for entry in recipe.locked()}
    lacking = [
        str(requirement)
        for requirement in wanted
        if (version := locked.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]
    why = f"not in the lock: {', '.join(lacking)}; lock it again (src/gpubed/recipes/README.md)"
    return _judged("lock.wanted", why if lacking else "", len(wanted), "all of requirements.in")


def _lock_resolves(recipe: Recipe) -> Check:
    id_, locked = "lock.resolves", recipe.locked()
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        return Check(id=id_, result="skip", reason="uv is not installed: pip install uv")
    wanted = "\n".join(f"{e} ; {e.marker}" if e.marker else str(e) for e in locked)
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    done = _run([uv, *_RESOLVE], input=wanted, env=environment)
    if done.returncode:
        return Check(id=id_, result="fail", reason=done.stderr.strip())
    index = {str(entry): set(entry.hashes) for entry in recipes.parse_lock(done.stdout)}
    other = [str(e) for e in locked if not e.hashes or not set(e.hashes) <= index[str(e)]]
    why = f"the index has other files of {', '.join(other)}" if other else ""
    return _judged(id_, why, len(locked), "all in the index, with the lock's hashes")


def _packages_serve_the_gpus(recipe: Recipe) -> Check:
    id_, architectures = "packages.architectures", recipe.gpus.architectures
    if not architectures:
        return Check(id=id_, result="skip", reason=f"recipe {recipe.name} uses no GPU")
    measured = recipe.measured()
    stale = {str(entry) for entry in with_gpu_code(recipe)} ^ measured.keys()
    faults = [f"{name} is not both locked and measured" for name in sorted(stale)]
    faults += recipes.unserved(recipe, measured)
    why = "; ".join(faults) + (f"; gpubed recipe measure {recipe.name}" if stale else "")
    return _judged(id_, why, len(measured), f"have code for {', '.join(architectures)}")


def _run(words: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)
