"""Runs a function for many items at once, but few enough for the login limit of an SSH server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
AT_ONCE = 10
"""The number of pending logins above which sshd drops some at random: MaxStartups is 10:30:100 by
default (sshd_config(5))."""


def each(function: Callable[[S], T], items: Iterable[S], at_once: int = AT_ONCE) -> list[T]:
    """Return a function's results for each item, in order; raises the first error."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(function, items))
