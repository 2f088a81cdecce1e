"""The own hosts that a `down` goes without: nobody can log in to them, now or ever.

They are kept in a file while it runs, since those who look at hosts are other processes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpubed.core import files, nearest, reading
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths


def place(address: str, port: int) -> str:
    """Return where SSH answers, in one word."""
    return address if port == 22 else f"{address}:{port}"


def addresses(cluster: str, known: Mapping[str, str], wanted: Sequence[str]) -> set[str]:
    """Return where the hosts are that somebody named by node or by address.

    Args:
        cluster: Its name.
        known: Its own hosts: where they are, by node.
        wanted: What was named.

    Raises:
        UsageError: It is no own host of the cluster.
    """
    found = set()
    for name in wanted:
        if (where := known.get(name, name)) not in known.values():
            choice = nearest.suggestion(name, sorted({*known, *known.values()}))
            raise UsageError(f"{cluster} has no own host {name!r}", choice)
        found.add(where)
    return found


def of_state(state: Mapping[str, Any]) -> dict[str, str]:
    """Return where the hosts are, by node, that a stack's state knows.

    It knows hosts that the specification names no more.
    """
    found = {}
    for resource in state.get("deployment", {}).get("resources") or ():
        outputs: Any = resource.get("outputs") or {}
        host = outputs.get("host")
        if outputs.get("kind") == "node" and isinstance(host, dict) and "address" in host:
            name = resource["urn"].rsplit("::", 1)[-1]
            found[name] = place(str(host["address"]), int(host.get("port", 22)))
    return found


@contextmanager
def noted(paths: ClusterPaths, hosts: Collection[str]) -> Iterator[None]:
    """Keep which hosts a run goes without, until it ends; a killed one's count no more."""
    paths.without.unlink(missing_ok=True)
    if hosts:
        files.write(paths.without, json.dumps(sorted(hosts)).encode())
    try:
        yield
    finally:
        paths.without.unlink(missing_ok=True)


def is_named(paths: ClusterPaths, address: str, port: int) -> bool:
    """Say whether a run goes without a host."""
    try:
        return place(address, port) in reading.file(paths.without).json(list[str])
    except reading.Missing:
        return False
