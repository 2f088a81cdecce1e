"""Hosts of one's own, in the tests: nodes of another local cluster, behind one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpubed.core.paths import Project
from support import own

RATE_BPS = 100_000_000
GROUND: dict[str, Any] = {
    "version": 1,
    "name": "ground",
    "backend": {"type": "local"},
    "nodes": [
        {"count": 2, "machine": {"cpus": 1, "memory": "1 GiB"}},
        {"name": "gate", "count": 1, "machine": {"cpus": 1, "memory": "512 MiB"}},
    ],
    "networks": {
        "control": {"subnet": "10.127.205.0/24"},
        "experiment": {"subnet": "10.127.206.0/24", "rate": RATE_BPS},
    },
}
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "contract",
    "backend": {"type": "static", "user": "gpubed"},
    "nodes": [{"count": 2}],
    "networks": {"experiment": {"subnet": "10.127.206.0/24", "rate": RATE_BPS}},
    "storage": {"shared": {"provider": "volume"}},
}


@contextmanager
def options(project: Project) -> Iterator[dict[str, Any]]:
    """Make hosts and what their user has: a key, known host keys; returns backend options."""
    # It loads this module.
    from contract.conftest import made_cluster

    with made_cluster(GROUND, project) as ground:
        *hosts, gate = ground.allocation.nodes
        own.let_all_in(node.id for node in ground.allocation.nodes)
        known = project.root / "known_hosts"
        lines = [f"{n.control_address} {k}\n" for n in (*hosts, gate) for k in n.host_keys]
        known.write_text("".join(lines))
        yield {
            "key": str(ground.paths.private_key),
            "known_hosts": str(known),
            "bastions": [{"address": gate.control_address}],
            "hosts": {
                "node": [
                    {"address": n.control_address, "experiment_address": n.experiment_address}
                    for n in hosts
                ]
            },
        }
