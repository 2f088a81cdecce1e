"""Virtual machines of this machine."""

from __future__ import annotations

from typing import Any

import pytest

MARKS = [pytest.mark.vms]
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "contract",
    "backend": {"type": "local", "runtime": "vm"},
    "nodes": [{"count": 2, "machine": {"cpus": 2, "memory": "1 GiB"}}],
    "networks": {
        "control": {"subnet": "10.127.203.0/24"},
        "experiment": {
            "subnet": "10.127.204.0/24",
            "rate": "20 Mbit/s",
            "mtu": 1400,
            "latency": "50 ms",
        },
    },
}
