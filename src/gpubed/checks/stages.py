"""Registers checks, and orders them by stage."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache
from importlib import import_module

from gpubed import checks
from gpubed.checks.context import Context
from gpubed.nodes.verification import Check

CheckFunction = Callable[[Context], Iterator[Check]]
_STAGE, _PLAIN, _FIRST = "verification_stage", "not_about_gpus", "first_id"


class Stage(IntEnum):
    """When a check runs: what fails early explains what fails later."""

    REACH = 1
    STORAGE = 2
    HARDWARE = 3
    SOFTWARE = 4
    SERVICES = 5
    FABRIC = 6
    LOAD = 7


def at(stage: Stage, *plain: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function of this package as a check of every verification.

    Args:
        stage: When it runs.
        plain: Ids of its checks that do not depend on GPUs. Checks with other ids never pass on
            nodes with simulated GPUs, so that a forgotten id proves nothing there.
    """

    def listed(function: CheckFunction) -> CheckFunction:
        setattr(function, _STAGE, stage)
        setattr(function, _PLAIN, frozenset(plain))
        setattr(function, _FIRST, next(iter(plain), ""))
        return function

    return listed


def stage(function: CheckFunction) -> Stage:
    """Return the stage of a check."""
    return Stage(getattr(function, _STAGE))


def subject(function: CheckFunction) -> str:
    """Return the subject of a check function: its module's name and its own."""
    module = function.__module__.rpartition(".")[2]
    name = function.__name__.replace("_", " ")
    return module if name == module else f"{module}, {name}"


def is_about_gpus(function: CheckFunction, id_: str) -> bool:
    """Say whether a check with this id, made by the function, depends on GPUs."""
    return id_ not in getattr(function, _PLAIN)


def first_id(function: CheckFunction) -> str:
    """Return an id of a function's checks, to report an error without a more precise one."""
    module = function.__module__.rpartition(".")[2]
    return getattr(function, _FIRST) or f"{module}.{function.__name__}"


@cache
def functions() -> tuple[CheckFunction, ...]:
    """Return all check functions by stage, then by module, then in the order of the source."""
    names = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))
    found = [
        value
        for name in names
        for value in vars(import_module(f"{checks.__name__}.{name}")).values()
        if hasattr(value, _STAGE)
    ]
    return tuple(sorted(found, key=stage))
