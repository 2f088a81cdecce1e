"""How a job starts on a cluster: one module each."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gpubed.core import nearest
from gpubed.core.errors import UsageError

if TYPE_CHECKING:
    from gpubed.jobs.launchers.base import JobService, Launcher


@cache
def names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted."""
    modules = (path.stem for path in Path(__file__).resolve().parent.glob("*.py"))
    return tuple(sorted(name for name in modules if name not in ("__init__", "base", "leftovers")))


@cache
def named(name: str) -> Launcher | JobService:
    """Return the launcher of that name.

    Raises:
        UsageError: There is no such launcher.
    """
    if name not in names():
        raise UsageError(f"there is no launcher {name!r}", nearest.suggestion(name, names()))
    made: Launcher | JobService = import_module(f"gpubed.jobs.launchers.{name}").create()
    return made
