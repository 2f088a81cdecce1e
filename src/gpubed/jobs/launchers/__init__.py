"""How a job starts on a cluster: a module with `create` each; what they share is a floor up."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gpubed.core import entries, nearest
from gpubed.core.errors import UsageError

if TYPE_CHECKING:
    from gpubed.jobs.launcher import JobService, Launcher


@cache
def names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted."""
    return entries.names(Path(__file__).resolve().parent, "create")


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
