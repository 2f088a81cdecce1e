"""Finds backends, roles, jobs, recipes and launchers in their folders.

Nothing is registered by hand: adding a folder adds the thing. Imports are lazy,
and an ImportError is never swallowed, since a half-installed backend must say so.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubed import nearest, paths, reading
from gpubed.errors import UsageError

if TYPE_CHECKING:
    from gpubed.backends.base import Backend, BackendConfig
    from gpubed.launchers.base import JobService, Launcher

_PACKAGE = Path(__file__).resolve().parent


@cache
def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, sorted."""
    return tuple(sorted(path.parent.name for path in (_PACKAGE / "backends").glob("*/config.py")))


@cache
def backend_config(name: str) -> type[BackendConfig]:
    """Return the class that holds the options of a backend."""
    config: type[BackendConfig] = import_module(f"gpubed.backends.{name}.config").Config
    return config


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        UsageError: There is no such backend.
    """
    if name not in backend_names():
        raise UsageError(f"there is no backend {name!r}", f"backends: {', '.join(backend_names())}")
    made: Backend = import_module(f"gpubed.backends.{name}.backend").create()
    return made


@cache
def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted."""
    modules = (path.stem for path in (_PACKAGE / "launchers").glob("*.py"))
    return tuple(sorted(name for name in modules if name not in ("__init__", "base", "leftovers")))


@cache
def launcher(name: str) -> Launcher | JobService:
    """Return the launcher of that name.

    Raises:
        UsageError: There is no such launcher.
    """
    if name not in launcher_names():
        raise UsageError(
            f"there is no launcher {name!r}", f"launchers: {', '.join(launcher_names())}"
        )
    made: Launcher | JobService = import_module(f"gpubed.launchers.{name}").create()
    return made


@cache
def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(path.parent.name for path in paths.recipes().glob("*/recipe.yml")))


@cache
def recipe(name: str) -> dict[str, Any]:
    """Return the content of a recipe; the caller must not change it."""
    path = paths.recipes() / name / "recipe.yml"
    return reading.file(path, f"correct {path}").yaml(dict[str, Any])


@cache
def role_names() -> tuple[str, ...]:
    """Return the names of all roles, sorted."""
    return tuple(
        sorted(p.parent.parent.name for p in (paths.assets() / "roles").glob("*/meta/gpubed.yml"))
    )


def _jobs() -> dict[str, Path]:
    """Return the folder of each job; a project's own job wins over one that gpubed brings."""
    roots = (paths.assets() / "jobs", paths.Project.find().jobs)
    return {path.parent.name: path.parent for root in roots for path in root.glob("*/job.yml")}


def job_names() -> tuple[str, ...]:
    """Return the names of all jobs, sorted."""
    return tuple(sorted(_jobs()))


def job_folder(name: str) -> Path:
    """Return the folder of a job.

    Raises:
        UsageError: There is no such job.
    """
    known = _jobs()
    if name not in known:
        close = nearest.suggestion(name, sorted(known))
        raise UsageError(
            f"there is no job {name!r}", f"gpubed init --job {name} writes one; {close}"
        )
    return known[name]
