"""Reads `cluster.yml`, checks it with its testbed, and plans it.

A run of `up` freezes it beside the cluster's record; the program, the providers and all later steps
of the run read that copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpubed.core import files, yaml_lines
from gpubed.core.errors import GpubedError
from gpubed.core.paths import FROZEN, ClusterPaths, Project
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.nodes.allocation import load as load_allocation
from gpubed.spec.clusterspec import ClusterSpec, SpecError, refusal, spec_backend
from gpubed.spec.plan import ClusterPlan, Unplannable, plan
from gpubed.testbeds import registry
from gpubed.testbeds.registry import check


def load(path: Path, name: str = "") -> ClusterSpec:
    """Read a specification; raise UsageError with its errors."""
    found, errors = check(path, name)
    if found is None:
        raise refusal(path, errors)
    return found


def planned(path: Path, name: str = "") -> tuple[ClusterPlan | None, list[SpecError]]:
    """Read and plan a specification; return the plan (None if unusable) and the errors by line."""
    found, errors = check(path, name)
    if found is None:
        return None, errors
    testbed, paths = registry.backend(spec_backend(found)), Project.find().cluster(found.name)
    try:
        return plan(found, testbed.surroundings(found, paths)), []
    except Unplannable as error:
        line, where = yaml_lines.read(path).line(error.path), ".".join(map(str, error.path))
        return None, [SpecError(str(path), line, where, error.message, error.allowed)]


def load_plan(path: Path, name: str = "") -> ClusterPlan:
    """Read and plan a specification; raise UsageError with its errors."""
    found, errors = planned(path, name)
    if found is None:
        raise refusal(path, errors)
    return found


def load_cluster(paths: ClusterPaths) -> Cluster:
    """Read a cluster's allocation and plan; raise NotUp without an allocation."""
    allocation = load_allocation(paths.allocation)
    return Cluster(paths, load_plan(paths.spec_in_use, paths.name), allocation)


def load_current(
    paths: ClusterPaths,
    tell: Callable[[str], None] = lambda _what: None,
    *,
    granted: Allocation | None = None,
) -> Cluster:
    """Read a cluster's allocation and plan; plan the last applied specification if need be.

    Args:
        tell: Called with a message if the present specification is unusable.
        granted: The allocation, if it was read already.

    Raises:
        NotUp: There is no allocation.
        GpubedError: The allocation or the last applied specification cannot be read.
    """
    allocation, wanted = granted or load_allocation(paths.allocation), None
    found, _ = planned(paths.spec_in_use, paths.name)
    if found and spec_backend(found.spec) == allocation.backend:
        wanted = found
    else:
        tell(f"{paths.spec} cannot be used as it is now: the last applied specification counts")
        wanted = plan(registry.reach(allocation.backend, paths).applied())
    return Cluster(paths, wanted, allocation)


@contextmanager
def frozen(paths: ClusterPaths, wanted: ClusterPlan) -> Iterator[None]:
    """Freeze the specification that a run applies, for all of its steps and processes.

    Raises `GpubedError` if the file was edited after the run was planned.
    """
    files.write(paths.frozen, files.read(paths.spec, yaml_lines.MAX_BYTES))
    require_same(load_plan(paths.frozen, paths.name), wanted.spec.digest, paths)
    os.environ[FROZEN] = str(paths.frozen)
    try:
        yield
    finally:
        del os.environ[FROZEN]
        paths.frozen.unlink(missing_ok=True)


def require_same(found: ClusterPlan, digest: str, paths: ClusterPaths) -> None:
    """Refuse a specification that was edited since a run began to apply it."""
    if found.spec.digest != digest:
        raise GpubedError(
            f"{paths.spec} was changed while it was being applied",
            f"gpubed up {paths.name} applies it as it is now",
        )
