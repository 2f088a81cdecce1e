"""Finds out where in their code the ranks of a run are, with py-spy on their nodes."""

from __future__ import annotations

import re
from contextlib import suppress

from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

# Prints rank, file, line and function of each rank of a run: the innermost frame outside of
# libraries, where there is one. `gpubed-exit` is the parent of a rank. A kernel with
# ptrace_scope 1 lets only root look.
_LOOK = r"""
import json, os, subprocess, sys
from pathlib import Path
run, spy = sys.argv[1:]
for process in Path("/proc").glob("[0-9]*"):
    try:
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        environment = (process / "environ").read_text().split("\0")
        words = dict(one.split("=", 1) for one in environment if one)
        above = Path("/proc", parent, "comm").read_text().strip()
    except (OSError, ValueError):
        continue
    if words.get("GPUBED_RUN_DIR") != run or "RANK" not in words or above != "gpubed-exit":
        continue
    dump = [spy, "dump", "--json", "--nonblocking", "--pid", process.name]
    for before in ([], ["sudo", "-n"]):
        told = subprocess.run([*before, *dump], capture_output=True, timeout=20)
        if told.returncode == 0:
            frames = [one for part in json.loads(told.stdout)[:1] for one in part["frames"]]
            own = [one for one in frames if "/lib/python3" not in one["filename"]]
            for frame in (own or frames)[:1]:
                name = os.path.relpath(frame["filename"], run)
                print(words["RANK"], name, frame["line"], frame["name"])
            break
"""
_TOLD = re.compile(r"(\d{1,6}) (\S.*) (\d+) (\S+)")


def places(cluster: Cluster, run: str) -> dict[int, str]:
    """Return where the ranks of a run are: `train.py:12, in step`; without those that hide.

    Args:
        run: The run's folder on shared storage.
    """
    spy = f"{cluster.plan.spec.storage.shared.path}/env/current/bin/py-spy"

    def look(node: Node) -> list[re.Match[str]]:
        with suppress(GpubedError), SSH(node, cluster.paths) as ssh:
            said = ssh.run("python3 - %s %s", run, spy, stdin=_LOOK, check=False).stdout
            return [found for line in said.splitlines() if (found := _TOLD.fullmatch(line))]
        return []

    found = parallel.each(look, cluster.allocation.with_ranks)
    return {int(one[1]): f"{one[2]}:{one[3]}, in {one[4]}" for each in found for one in each}
