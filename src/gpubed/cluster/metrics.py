"""What only the controller knows, for the cluster's monitoring: verification and lease.

Prometheus reads it on the head as a text file; `role monitoring` makes the folder.
"""

from __future__ import annotations

from datetime import datetime

from gpubed.cluster import lease
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Verification

_FOLDER = "/var/lib/gpubed/metrics"
_FILE = f"{_FOLDER}/gpubed.prom"


def publish(cluster: Cluster, verification: Verification) -> None:
    """Leave the figures on the head, if it is monitored yet; else the verification says so.

    Raises:
        GpubedError: The head could not be reached.
    """
    with SSH(cluster.allocation.head, cluster.paths) as head:
        if head.run("test -d %s", _FOLDER, check=False).exit_code:
            return
        # In one step: nobody reads half a file.
        end = lease.known(cluster.paths).granted_until
        head.write(f"{_FILE}.draft", text(cluster.allocation, verification, end))
        head.run("mv %s %s", f"{_FILE}.draft", _FILE)


def text(
    allocation: Allocation, verification: Verification, lease_end: datetime | None = None
) -> str:
    """Return the figures in Prometheus' text format; times in seconds since 1970."""
    lines = [f"gpubed_verification_timestamp_seconds {verification.at.timestamp():.0f}"]
    for result in ("pass", "fail", "skip", "simulated"):
        count = verification.count(result)
        lines.append(f'gpubed_verification_checks{{result="{result}"}} {count}')
    # Twice the same label would make the whole file unreadable.
    failed = {
        (c.id, c.node or allocation.cluster) for c in verification.checks if c.result == "fail"
    }
    for check, where in sorted(failed):
        lines.append(f'gpubed_verification_failed{{check="{check}",where="{where}"}} 1')
    if lease_end:
        lines.append(f"gpubed_lease_end_timestamp_seconds {lease_end.timestamp():.0f}")
    return "".join(f"{line}\n" for line in lines)
