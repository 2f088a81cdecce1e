"""Checks a recipe: against itself, the package index, its packages, and nodes.

The index is read through its ordinary clients, uv and pip, with whatever they are
configured to use. `measure` downloads what has GPU code, about 3 GB for a recipe.
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
from gpubed.recipes import fatbin, recipe
from gpubed.recipes.fatbin import Architectures
from gpubed.recipes.recipe import Locked, Recipe

_RESOLVE = shlex.split(
    "pip compile --quiet --universal --generate-hashes --no-deps --no-annotate --no-header "
    "--no-emit-index-url --python-version 3.11 -"
)
_DOWNLOAD = shlex.split("pip download --quiet --no-deps --require-hashes --only-binary :all:")
_WITH_GPU_CODE = ("torch", "nvidia-")
_HERE = {key: str(value) for key, value in default_environment().items()}


def check(of: Recipe) -> Iterator[Check]:
    """Check a recipe against its own files and the package index."""
    found, why = of.lock_sha256(), f"write the lock's checksum into {of.folder / 'recipe.yml'}"
    why = "" if found == of.lock.sha256 else why
    yield _judged("lock.checksum", why, found, of.lock.sha256, "")
    yield _lock_has_what_is_wanted(of)
    yield _lock_resolves(of)
    yield _packages_serve_the_gpus(of)


def check_nodes(of: Recipe, cluster: Cluster) -> Iterator[Check]:
    """Compare the nodes of a cluster with a recipe, which need not be the cluster's own."""
    plan, nodes = cluster.plan, cluster.allocation.nodes
    spec = plan.spec.model_copy(update={"recipe": of.name})
    with ExitStack() as stack:
        sessions = {n.name: stack.enter_context(SSH(n, cluster.paths)) for n in nodes}
        changed = replace(cluster, plan=plan.model_copy(update={"spec": spec}))
        context = Context(changed, sessions)
        yield from software.packages(context)
        yield from software.gpus(context)


def measure(of: Recipe) -> Iterator[tuple[str, dict[str, Architectures]]]:
    """Download each package that may have GPU code; yield its name and its architectures."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PrerequisiteMissing(
            "packages are measured on Linux on x86-64, where they are the nodes'",
            "run this on such a machine",
        )
    for entry in with_gpu_code(of):
        with tempfile.TemporaryDirectory(prefix="gpubed-wheel-") as folder:
            yield str(entry), fatbin.of_wheel(_download(entry, Path(folder)))


def with_gpu_code(of: Recipe) -> list[Locked]:
    """Return the packages of a recipe that may carry GPU code; none without GPUs."""
    here = {**_HERE, "sys_platform": "linux", "platform_machine": "x86_64"}
    return [
        entry
        for entry in (of.locked() if of.gpus.architectures else ())
        if entry.name.startswith(_WITH_GPU_CODE) and entry.applies(here)
    ]


def _download(entry: Locked, folder: Path) -> Path:
    hashes = " ".join(f"--hash={text}" for text in entry.hashes)
    (folder / "wanted.txt").write_text(f"{entry} {hashes}\n", encoding="utf-8")
    wanted = str(folder / "wanted.txt")
    done = _run([sys.executable, "-m", *_DOWNLOAD, "--dest", str(folder), "-r", wanted])
    if done.returncode:
        raise GpubedError(f"{entry} cannot be downloaded:\n{done.stderr.strip()[-600:]}")
    return next(folder.glob("*.whl"))


def _judged(id_: str, reason: str, value: int | str, limit: str, unit: str = "packages") -> Check:
    result: Result = "fail" if reason else "pass"
    return Check(id=id_, result=result, value=value, unit=unit, limit=limit, reason=reason)


def _lock_has_what_is_wanted(of: Recipe) -> Check:
    wanted, locked = of.wanted(), {entry.name: entry.version for entry in of.locked()}
    lacking = [
        str(one)
        for one in wanted
        if locked.get(name := canonicalize_name(one.name)) is None
        or not one.specifier.contains(locked[name], prereleases=True)
    ]
    why = f"not in the lock: {', '.join(lacking)}; lock it again (src/gpubed/recipes/README.md)"
    return _judged("lock.wanted", why if lacking else "", len(wanted), "all of requirements.in")


def _lock_resolves(of: Recipe) -> Check:
    id_, locked = "lock.resolves", of.locked()
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        return Check(id=id_, result="skip", reason="uv is not installed: pip install uv")
    wanted = "\n".join(f"{e} ; {e.marker}" if e.marker else str(e) for e in locked)
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    done = _run([uv, *_RESOLVE], input=wanted, env=environment)
    if done.returncode:
        return Check(id=id_, result="fail", reason=done.stderr.strip())
    index = {str(entry): set(entry.hashes) for entry in recipe.parse_lock(done.stdout)}
    strange = [str(e) for e in locked if not e.hashes or not set(e.hashes) <= index[str(e)]]
    why = f"the index has other files of {', '.join(strange)}" if strange else ""
    return _judged(id_, why, len(locked), "all in the index, with the lock's hashes")


def _packages_serve_the_gpus(of: Recipe) -> Check:
    id_ = "packages.architectures"
    if not of.gpus.architectures:
        return Check(id=id_, result="skip", reason=f"recipe {of.name} uses no GPU")
    record = of.measured()
    stale = {str(entry) for entry in with_gpu_code(of)} ^ record.keys()
    lacking = [f"{name} is not both locked and measured" for name in sorted(stale)]
    lacking += recipe.unserved(of, record)
    why = "; ".join(lacking) + (f"; gpubed recipe measure {of.name}" if stale else "")
    return _judged(id_, why, len(record), f"have code for {', '.join(of.gpus.architectures)}")


def _run(words: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)
