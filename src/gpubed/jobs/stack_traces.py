"""Finds the line of code that each rank of a run executes, with py-spy on its node."""

from __future__ import annotations

import re
import threading
from contextlib import suppress

from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.jobs.rank_output import RankOutput
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH

# Prints rank, file, line and function of each rank of a run, of the innermost frame outside of
# libraries if there is one. `gpubed-exit` is the parent of a rank. With ptrace_scope 1, py-spy
# needs root.
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
        try:
            told = subprocess.run([*before, *dump], capture_output=True, timeout=5)
            threads = json.loads(told.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        main = [one for one in threads if one["os_thread_id"] == int(process.name)]
        frames = [one for part in main or threads[-1:] for one in part["frames"]]
        own = [one for one in frames if "/lib/python3" not in one["filename"]]
        for frame in (own or frames)[:1]:
            name = os.path.relpath(frame["filename"], run)
            print(words["RANK"], name, frame["line"], frame["name"], flush=True)
        break
"""
_TOLD = re.compile(r"(\d{1,6}) (\S.{0,199}) (\d{1,9}) (\S{1,100})")
_LOOK_S = 20.0


class Stalls:
    """Finds the places of ranks at each stall of a run.

    Args:
        run: The run's folder on shared storage.
        output: The run's output, which counts stalls; its `places` are set.
    """

    def __init__(self, cluster: Cluster, run: str, output: RankOutput) -> None:
        self._cluster, self._run, self._output = cluster, run, output
        self._stalls, self._found = 0, dict[int, str]()

    def news(self) -> list[str]:
        """Return messages about places found since the last call; start a search at a new stall."""
        if self._output.stalls != self._stalls:
            self._stalls = self._output.stalls
            threading.Thread(target=self._look, daemon=True).start()
        found, self._found = self._found, {}
        return [f"ranks wait for others; rank {rank} is at {found[rank]}" for rank in sorted(found)]

    def _look(self) -> None:
        nodes = self._cluster.allocation.with_ranks
        found = dict(one for each in parallel.each(self._on, nodes) for one in each)
        self._output.places = self._found = found

    def _on(self, node: Node) -> list[tuple[int, str]]:
        spy = f"{self._cluster.plan.spec.storage.shared.path}/env/current/bin/py-spy"
        with suppress(GpubedError, OSError), SSH(node, self._cluster.paths) as ssh:
            words = (self._run, spy)
            answer = ssh.run("python3 - %s %s", *words, stdin=_LOOK, check=False, timeout=_LOOK_S)
            lines = answer.stdout.splitlines()[: node.slots]
            found = [one for one in map(_TOLD.fullmatch, lines) if one]
            return [(int(one[1]), f"{one[2]}:{one[3]}, in {one[4]}") for one in found]
        return []
