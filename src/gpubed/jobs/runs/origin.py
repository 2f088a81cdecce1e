"""Collects the origin of a run (files, versions, nodes) and copies it into the run's folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256 as _sha256
from pathlib import Path

import gpubed
from gpubed.configuration import owners_variables
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.hardware import facts
from gpubed.jobs.runs.record import (
    MOST_BPS,
    ORIGIN,
    Commit,
    Host,
    Origin,
    sha256_of,
    sha256_of_files,
    sha256_of_folder,
)
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.verification import Verification
from gpubed.recipes import recipe as recipes

_UNITS = {"bit/s": 1.0, "Mbit/s": 1e6}  # units of rates in checks
_TIMEOUT_S = 10


def look(cluster: Cluster, folder: Path, names: Iterable[str] | None) -> Origin:
    """Return the origin of a run that would start now.

    Args:
        cluster: The cluster, with the nodes that the run may use.
        folder: The folder of the job or command.
        names: Its files that are copied to the nodes; None for all files.
    """
    recipe, network = recipes.load(cluster.plan.spec.recipe), cluster.allocation.experiment
    used = (*cluster.allocation.nodes[:1], *cluster.allocation.with_ranks)
    return Origin(
        cluster=cluster.name,
        uuid=cluster.allocation.uuid,
        gpubed=gpubed.__version__,
        recipe=recipe.name,
        recipe_sha256=recipe.lock_sha256(),
        spec_sha256=sha256_of(cluster.paths.spec),
        job_sha256=sha256_of_folder(folder) if names is None else sha256_of_files(folder, names),
        git=commit(cluster.paths.project.root if names is None else folder),
        hosts=_hosts(cluster),
        rate_bps=network.rate_bps if network else None,
        rates_bps=rates(cluster.paths),
        variables_sha256=owners_variables.checksums(
            cluster.paths.inventory, [node.name for node in used]
        ),
    )


def copy(cluster: Cluster, folder: Path) -> None:
    """Copy the files of a run's origin into its folder; none of them is secret."""
    paths = cluster.paths
    origin = folder / ORIGIN
    origin.mkdir()
    recipe = recipes.load(cluster.plan.spec.recipe)
    for path in (paths.spec, paths.allocation, paths.verification, recipe.lock_path):
        if path.is_file():
            shutil.copyfile(path, origin / path.name)
    if paths.facts.is_dir():
        shutil.copytree(paths.facts, origin / paths.facts.name)


def rates(paths: ClusterPaths) -> dict[str, float]:
    """Return the link rates of the last verification, in bit/s, by `a>b`.

    Impossible rates, as in an edited file, are left out.
    """
    last = None
    with suppress(Unreadable):
        last = Verification.last(paths.verification)
    return {
        check.node: check.value * _UNITS[check.unit]
        for check in (last.checks if last else ())
        if check.id == "link.rate" and check.unit in _UNITS and isinstance(check.value, int | float)
        if 0 <= check.value <= MOST_BPS / _UNITS[check.unit]
    }


def commit(root: Path) -> Commit | None:
    """Return the state of a project's git repository; None without one."""
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain")
    if head is None or changed is None:
        return None
    if not changed.strip():
        return Commit(commit=head.strip(), clean=True)
    differs = f"{changed}{_git(root, 'diff', 'HEAD') or ''}"
    return Commit(commit=head.strip(), clean=False, changes=_sha256(differs.encode()).hexdigest())


def _hosts(cluster: Cluster) -> tuple[Host, ...]:
    found = facts.of_cluster(cluster.paths.facts, cluster.allocation)
    return tuple(
        Host(
            name=node.name,
            id=node.id,
            slots=node.slots,
            gpus=node.gpus,
            hardware=found[node.name].words if node.name in found else None,
        )
        for node in cluster.allocation.with_ranks
    )


def _git(root: Path, *words: str) -> str | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
        return done.stdout if done.returncode == 0 else None
    return None
