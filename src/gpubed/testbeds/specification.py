"""`cluster.yml`, held against its testbed: its plan, and all that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpubed.core import located
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.cluster import Cluster
from gpubed.spec import clusterspec
from gpubed.spec.clusterspec import ClusterSpec, Problem, SpecError, refusal, spec_backend
from gpubed.spec.plan import ClusterPlan, Unplannable, plan
from gpubed.testbeds import kinds


def check(path: Path, name: str = "") -> tuple[ClusterSpec | None, list[SpecError]]:
    """Read a specification and find everything that is wrong with it.

    Args:
        path: The file.
        name: The cluster's; as its folder is called where it is empty.

    Returns:
        The specification (None when it is not usable) and all errors by line.
    """
    return clusterspec.read(path, name, _problems)


def load(path: Path) -> ClusterSpec:
    """Read a specification.

    Raises:
        UsageError: It has errors; all of them are in the message.
    """
    found, errors = check(path)
    if found is None:
        raise refusal(path, errors)
    return found


def planned(path: Path) -> tuple[ClusterPlan | None, list[SpecError]]:
    """Read a specification, plan it, and find everything that is wrong with it.

    Returns:
        The plan (None when there is none) and all errors by line.
    """
    found, errors = check(path)
    if found is None:
        return None, errors
    testbed, paths = kinds.backend(spec_backend(found)), Project.find().cluster(found.name)
    try:
        return plan(found, testbed.surroundings(found, paths)), []
    except Unplannable as error:
        line, where = located.read(path).line(error.path), ".".join(map(str, error.path))
        return None, [SpecError(str(path), line, where, error.message, error.allowed)]


def load_plan(path: Path) -> ClusterPlan:
    """Read and plan a specification.

    Raises:
        UsageError: It has errors; all of them are in the message.
    """
    found, errors = planned(path)
    if found is None:
        raise refusal(path, errors)
    return found


def load_cluster(paths: ClusterPaths) -> Cluster:
    """Read what was granted for a cluster, and what is planned.

    Raises:
        NotUp: Nothing was granted.
        UsageError: The specification has errors; all of them are in the message.
        GpubedError: What was granted cannot be read.
    """
    allocation = load_allocation(paths.allocation)
    return Cluster(paths, load_plan(paths.spec), allocation)


def load_same(path: Path, digest: str) -> ClusterPlan:
    """Read and plan a specification that a run has begun to apply.

    Args:
        digest: Of what it asked for then.

    Raises:
        UsageError: It has errors.
        GpubedError: It asks for something else by now.
    """
    found = load_plan(path)
    if found.spec.digest != digest:
        raise GpubedError(
            f"{path} was changed while it was being applied",
            f"gpubed up {found.cluster} applies it as it is now",
        )
    return found


def _problems(found: ClusterSpec) -> Iterable[Problem]:
    return kinds.backend(spec_backend(found)).check(found)
