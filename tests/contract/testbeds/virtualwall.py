"""A GENI site of ours, whose slivers are real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpubed.core.paths import Project
from support import wall
from support.am import AmServer, Site
from support.am.machines import Machines

MARKS = [pytest.mark.testbeds]
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "contract",
    "backend": {},
    "nodes": [{"count": 2}],
    "networks": {"experiment": {"rate": 100_000_000}},
    "storage": {"shared": {"provider": "volume"}},
}


@contextmanager
def options(project: Project) -> Iterator[dict[str, Any]]:
    """Serve a GENI site whose slivers are real nodes; returns backend options."""
    site = Site()
    nodes = Machines(control="10.127.217.0/24", cpus=1.0, memory=512 << 20)
    with AmServer(project.root / "am", site=site, nodes=nodes) as server:
        user = server.user("alice", passphrase="open sesame")
        yield wall.backend(server, user, poll=0.5, shared_folder="/proj/testproj")
        assert server.slivers() == []
