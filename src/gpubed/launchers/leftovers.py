"""What an earlier run has left on the nodes: found by its heartbeat's name, named and ended.

It ends by itself, too, but only after `SILENCE_S`, and until then its processes would
share the processors with the next run.

Others than ours start runs, too: JupyterLab's account by `gpubed-horovodrun`. Root alone may
look at all of them, and takes no word of theirs for more than a file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from gpubed.allocation import Allocation, Node
from gpubed.launchers.ssh import HEARTBEAT, SILENCE_S
from gpubed.paths import ClusterPaths
from gpubed.ssh import SSH

_AT_ONCE = 16
# A line for each process of a job: its number and the file of its run's heartbeat. What only
# looks whether its rank is still there ends by itself. In a confined container root may not look
# at other accounts' processes; each account may look at its own.
_FIND = f"""
found() {{
  pid=${{2#/proc/}}; pid=${{pid%/environ}}
  [ "$(cat /proc/$pid/comm)" != gpubed-rank ] || return
  beat=$($1 sed -zn s/^{HEARTBEAT}=//p $2 </dev/null | tr '\\0' '\\n' | head -n 1)
  [ ! "$beat" ] || echo "$pid $beat"
}}
for file in $(grep -lsz ^{HEARTBEAT}= /proc/[0-9]*/environ); do
  found '' $file
done 2>/dev/null
for file in /proc/[0-9]*/environ; do
  [ -O $file ] || true < $file ||
    found "setpriv --clear-groups $(stat -c '--reuid %u --regid %g' $file)" $file
done 2>/dev/null
"""
_OWNED = f"find %s -newermt '-{SILENCE_S} seconds' ! -exec grep -q end {{}} \\; -print"
_AS_ROOT = "sudo -n sh -c %s"
_PATH = re.compile(r"/[\w./+-]+")
_END = "kill -TERM {pids}; sleep 3; kill -KILL {pids}; true"


def end(cluster: ClusterPaths, allocation: Allocation) -> Iterator[str]:
    """End the processes of runs that have no owner any more; yields what was found, in words."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda node: _find(cluster, node), allocation.nodes))
    for beat in sorted({beat for beats in found for beat in beats}):
        run = PurePosixPath(beat).parent.name
        busy = {
            node: beats[beat]
            for node, beats in zip(allocation.nodes, found, strict=True)
            if beat in beats
        }
        where = ", ".join(f"{len(pids)} process(es) on {node.name}" for node, pids in busy.items())
        with SSH(allocation.head, cluster) as head:
            owned = head.run(_OWNED, beat, check=False).stdout.strip()
        if owned:
            yield f"run {run} is still at work ({where}): the two share its processors"
            continue
        yield f"run {run} has no owner any more; ended what it left: {where}"
        for node, pids in busy.items():
            with SSH(node, cluster) as ssh:
                ssh.run(_AS_ROOT, _END.format(pids=" ".join(pids)), check=False)


def _find(cluster: ClusterPaths, node: Node) -> dict[str, list[str]]:
    """Return the processes of jobs on a node, by their heartbeats."""
    with SSH(node, cluster) as ssh:
        lines = ssh.run(_AS_ROOT, _FIND, check=False).stdout.splitlines()
    beats: dict[str, list[str]] = {}
    for pid, _, beat in (line.partition(" ") for line in lines):
        if pid.isdecimal() and _PATH.fullmatch(beat):
            beats.setdefault(beat, []).append(pid)
    return beats
