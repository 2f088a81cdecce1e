"""Finds a kind of testbed by its name; its modules are imported only then.

An ImportError is never swallowed, since a half-installed backend must say so.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from gpubed.core.errors import UsageError
from gpubed.spec import backend_config
from gpubed.testbeds.base import Backend


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        UsageError: There is no such backend.
    """
    names = backend_config.names()
    if name not in names:
        raise UsageError(f"there is no backend {name!r}", f"backends: {', '.join(names)}")
    made: Backend = import_module(f"gpubed.backends.{name}.backend").create()
    return made
