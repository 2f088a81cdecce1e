"""Launchers: the modules here with a function `create`, and the testbeds that run jobs.

`slurm` is both a module, which starts jobs on nodes, and a testbed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpubed.core.errors import UsageError
from gpubed.core.files import modules_with
from gpubed.core.text import nearest_name
from gpubed.spec import backend_config
from gpubed.testbeds import registry

if TYPE_CHECKING:
    from gpubed.jobs.launcher import Launcher
    from gpubed.testbeds.base import JobBackend, JobService


@cache
def names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted."""
    testbeds = (n for n in backend_config.names() if not backend_config.named(n).lends_nodes)
    return tuple(sorted({*_own(), *testbeds}))


@cache
def named(name: str) -> Launcher | JobService:
    """Return the launcher of that name.

    Raises:
        UsageError: There is no such launcher.
    """
    if name not in names():
        raise UsageError(f"there is no launcher {name!r}", nearest_name(name, names()))
    if name not in _own():
        return cast("JobBackend", registry.backend(name)).service()
    made: Launcher = import_module(f"gpubed.jobs.launchers.{name}").create()
    return made


def _own() -> list[str]:
    return [*modules_with(Path(__file__).resolve().parent, "create")]
