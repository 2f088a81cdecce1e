"""Runs a function for many items at once, within the login limit of an SSH server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
AT_ONCE = 10
"""As many logins may be under way at a bastion before it drops some by chance: sshd's
MaxStartups is 10:30:100 by default (sshd_config(5))."""


def each(do: Callable[[S], T], these: Iterable[S], at_once: int = AT_ONCE) -> list[T]:
    """Return a function's results for each item, in order; raises the first error."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(do, these))


@contextmanager
def beside(do: Callable[[], T]) -> Iterator[Future[T]]:
    """Run a function in a thread beside the body; on exit, waits for it to end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(do)
