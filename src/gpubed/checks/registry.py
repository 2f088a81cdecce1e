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


class Stage(IntEnum):
    """When a check runs: what fails early explains what fails later."""

    REACH = 1
    STORAGE = 2
    HARDWARE = 3
    SOFTWARE = 4
    SERVICES = 5
    FABRIC = 6
    LOAD = 7


_CHECKS: dict[CheckFunction, tuple[Stage, tuple[str, ...]]] = {}


def at(stage: Stage, *plain: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function of this package as a check of every verification.

    `plain` are ids of its checks that do not depend on GPUs. Those with other ids never pass on
    nodes with simulated GPUs, so that a forgotten id proves nothing there.
    """

    def listed(function: CheckFunction) -> CheckFunction:
        _CHECKS[function] = stage, plain
        return function

    return listed


def stage(function: CheckFunction) -> Stage:
    """Return the stage of a check."""
    return _CHECKS[function][0]


def subject(function: CheckFunction) -> str:
    """Return the subject of a check function: its module's name and its own."""
    module = function.__module__.rpartition(".")[2]
    name = function.__name__.replace("_", " ")
    return module if name == module else f"{module}, {name}"


def is_about_gpus(function: CheckFunction, id_: str) -> bool:
    """Say whether a check with this id, made by the function, depends on GPUs."""
    return id_ not in _CHECKS[function][1]


def first_id(function: CheckFunction) -> str:
    """Return an id of a function's checks, to report an error without a more precise one."""
    module = function.__module__.rpartition(".")[2]
    return next(iter(_CHECKS[function][1]), f"{module}.{function.__name__}")


@cache
def functions() -> tuple[CheckFunction, ...]:
    """Return all check functions by stage, then by module, then in the order of the source."""
    for module in pkgutil.iter_modules(checks.__path__):
        import_module(f"{checks.__name__}.{module.name}")
    return tuple(sorted(_CHECKS, key=lambda one: (stage(one), one.__module__)))
