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
    """When a check runs: an early failure explains later ones."""

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

    `plain` are the ids of its checks that do not depend on GPUs. With simulated GPUs, others are
    `simulated` instead of `pass`.
    """

    def register(function: CheckFunction) -> CheckFunction:
        _CHECKS[function] = stage, plain
        return function

    return register


def stage(function: CheckFunction) -> Stage:
    """Return the stage of a check."""
    return _CHECKS[function][0]


def subject(function: CheckFunction) -> str:
    """Return the names of a check's module and function, as one text for messages."""
    module = function.__module__.rpartition(".")[2]
    name = function.__name__.replace("_", " ")
    return module if name == module else f"{module}, {name}"


def is_about_gpus(function: CheckFunction, id_: str) -> bool:
    """Return whether the result with this id of a check function depends on GPUs."""
    return id_ not in _CHECKS[function][1]


def first_id(function: CheckFunction) -> str:
    """Return the id under which an error of a whole check function is reported."""
    module = function.__module__.rpartition(".")[2]
    return next(iter(_CHECKS[function][1]), f"{module}.{function.__name__}")


@cache
def functions() -> tuple[CheckFunction, ...]:
    """Return all check functions by stage, then by module, then in the order of the source."""
    for module in pkgutil.iter_modules(checks.__path__):
        import_module(f"{checks.__name__}.{module.name}")
    return tuple(sorted(_CHECKS, key=lambda one: (stage(one), one.__module__)))
