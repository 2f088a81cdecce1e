"""Finds a testbed by its backend's name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config, clusterspec
from gpubed.spec.clusterspec import ClusterSpec, SpecError, spec_backend
from gpubed.testbeds.base import Backend, Testbed, concrete
from gpubed.testbeds.options import TestbedOptions


@cache
def backend(name: str) -> Backend:
    """Return the backend of a name; UsageError if there is none."""
    names = backend_config.names()
    if name not in names:
        raise UsageError(f"there is no backend {name!r}", f"backends: {', '.join(names)}")
    made: Backend = concrete(f"gpubed.backends.{name}.backend", Backend)()
    return made


def check(path: Path, name: str = "") -> tuple[ClusterSpec | None, list[SpecError]]:
    """Read a specification; return it (None if unusable), and all errors by line.

    The cluster's name is by default that of the file's folder.
    """
    return clusterspec.read(path, name, lambda found: backend(spec_backend(found)).check(found))


def bound(name: str, paths: ClusterPaths) -> Testbed:
    """Return a cluster's testbed of a kind; reads no file and asks no server yet."""
    return backend(name).bind(reach(name, paths), paths)


def reach(name: str, paths: ClusterPaths) -> TestbedOptions:
    """Return the options by which a cluster reaches its testbed of a kind."""
    return TestbedOptions(name, paths, check)
