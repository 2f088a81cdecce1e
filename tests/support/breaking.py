"""Breaks the containers of a cluster by commands of Docker's, as docs/how-to/chaos.md says."""

import subprocess

from gpubed.core.paths import Project
from gpubed.nodes import allocation

_ARRIVING = "nft add chain inet lossy arriving '{ type filter hook input priority -310; }'"
_LOSE = (
    f"nft add table inet lossy && {_ARRIVING} && "
    "nft add rule inet lossy arriving ip saddr %s numgen random mod 100 '<' 5 drop"
)
# How each fault is made, and how it ends; None: `gpubed up` repairs it.
FAULTS = {
    "freeze-node": ("docker pause {node}", "docker unpause {node}"),
    "kill-node": ("docker kill {node}", None),
    "remove-node": ("docker rm --force {node}", None),
    "stop-sshd": ("docker exec {node} systemctl stop ssh", None),
    "stop-service": ("docker exec {node} systemctl stop jupyterlab", None),
    "cut-control": ("docker network disconnect {prefix}-control {node}", None),
    "cut-experiment": ("docker network disconnect {prefix}-experiment {node}", None),
    "lossy-link": (
        'docker exec {node} sh -c "' + _LOSE % "{subnet}" + '"',
        "docker exec {node} nft delete table inet lossy",
    ),
}


def broken(cluster, fault, node):
    """Break a node; return the command that ends it, None where `gpubed up` does."""
    found = allocation.load(Project(cluster.root).cluster(cluster.name).allocation)
    words = {
        "node": next(one.id for one in found.nodes if one.name == node),
        "prefix": f"gpubed-{found.cluster}-{found.uuid[:8]}",
        "subnet": found.experiment.subnet,
    }
    do, undo = (one and _filled(one, words) for one in FAULTS[fault])
    run(do)
    return undo


def _filled(command, words):
    for name, value in words.items():
        command = command.replace(f"{{{name}}}", str(value))
    return command


def run(command):
    subprocess.run(command, shell=True, check=True, capture_output=True)
