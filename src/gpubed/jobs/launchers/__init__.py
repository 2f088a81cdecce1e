"""How a job starts on a cluster: one module each, and each testbed that runs jobs itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpubed.core import nearest
from gpubed.core.errors import UsageError
from gpubed.spec import backend_config
from gpubed.testbeds import registry

if TYPE_CHECKING:
    from gpubed.jobs.launchers.base import Launcher
    from gpubed.testbeds.base import JobBackend
    from gpubed.testbeds.service import JobService


@cache
def names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted."""
    return tuple(sorted((*_modules(), *_testbeds())))


@cache
def named(name: str) -> Launcher | JobService:
    """Return the launcher of that name.

    Raises:
        UsageError: There is no such launcher.
    """
    if name not in names():
        raise UsageError(f"there is no launcher {name!r}", nearest.suggestion(name, names()))
    if name in _testbeds():
        return cast("JobBackend", registry.backend(name)).service()
    made: Launcher = import_module(f"gpubed.jobs.launchers.{name}").create()
    return made


def _modules() -> list[str]:
    modules = (path.stem for path in Path(__file__).resolve().parent.glob("*.py"))
    return [name for name in modules if name not in ("__init__", "base", "leftovers")]


def _testbeds() -> list[str]:
    return [name for name in backend_config.names() if not backend_config.named(name).lends_nodes]
