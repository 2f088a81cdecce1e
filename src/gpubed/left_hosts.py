"""The own hosts that a `down` goes without: nobody can log in to them, now or ever.

They are kept in a file while it runs, since those who look at hosts are other processes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpubed import files, nearest, reading
from gpubed.errors import UsageError
from gpubed.paths import ClusterPaths

if TYPE_CHECKING:
    from gpubed.stack import Stack
    from gpubed.testbeds import Testbeds


def place(address: str, port: int) -> str:
    """Return where SSH answers, in one word."""
    return address if port == 22 else f"{address}:{port}"


def addresses(stack: Stack, asked: Testbeds, wanted: Sequence[str]) -> set[str]:
    """Return where the hosts are that somebody named by node or by address.

    Args:
        stack: The cluster's; its state knows hosts that its specification names no more.
        asked: Its testbeds.
        wanted: What was named.

    Raises:
        UsageError: It is no own host of the cluster.
    """
    if not wanted:
        return set()
    known = asked.own_hosts() | dict(_of_state(stack))
    found = set()
    for name in wanted:
        if (where := known.get(name, name)) not in known.values():
            choice = nearest.suggestion(name, sorted({*known, *known.values()}))
            raise UsageError(f"{stack.cluster.name} has no own host {name!r}", choice)
        found.add(where)
    return found


def _of_state(stack: Stack) -> Iterator[tuple[str, str]]:
    for resource in stack.export().get("deployment", {}).get("resources") or ():
        outputs: Any = resource.get("outputs") or {}
        host = outputs.get("host")
        if outputs.get("kind") == "node" and isinstance(host, dict) and "address" in host:
            name = resource["urn"].rsplit("::", 1)[-1]
            yield name, place(str(host["address"]), int(host.get("port", 22)))


@contextmanager
def noted(cluster: ClusterPaths, hosts: Collection[str]) -> Iterator[None]:
    """Keep which hosts a run goes without, until it ends; a killed one's count no more."""
    cluster.without.unlink(missing_ok=True)
    if hosts:
        files.write(cluster.without, json.dumps(sorted(hosts)).encode())
    try:
        yield
    finally:
        cluster.without.unlink(missing_ok=True)


def is_named(cluster: ClusterPaths, address: str, port: int) -> bool:
    """Say whether a run goes without a host."""
    try:
        return place(address, port) in reading.file(cluster.without).json(list[str])
    except reading.Missing:
        return False
