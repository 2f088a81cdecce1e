"""Containers of this machine."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "contract",
    "backend": {"type": "local"},
    "nodes": [{"count": 2, "machine": {"cpus": 1, "memory": "1 GiB"}}],
    "networks": {
        "control": {"subnet": "10.127.201.0/24"},
        "experiment": {"subnet": "10.127.202.0/24", "rate": 100_000_000, "mtu": 1400},
    },
}
