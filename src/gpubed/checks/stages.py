"""How checks list themselves, and in which order they run."""

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
_STAGE = "verification_stage"


class Stage(IntEnum):
    """When a check runs: what fails early explains what fails later."""

    REACH = 1
    STORAGE = 2
    HARDWARE = 3
    SOFTWARE = 4
    SERVICES = 5
    FABRIC = 6
    LOAD = 7


def at(stage: Stage) -> Callable[[CheckFunction], CheckFunction]:
    """Make a function of a module of this package a check of every verification."""

    def listed(function: CheckFunction) -> CheckFunction:
        setattr(function, _STAGE, stage)
        return function

    return listed


@cache
def functions() -> tuple[CheckFunction, ...]:
    """Return all checks by stage; within one, by module, and as they stand there."""
    names = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))
    found = [
        value
        for name in names
        for value in vars(import_module(f"{checks.__name__}.{name}")).values()
        if hasattr(value, _STAGE)
    ]
    return tuple(sorted(found, key=lambda function: getattr(function, _STAGE)))
