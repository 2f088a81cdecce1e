"""What an earlier run has left on the nodes: found by its heartbeat's name, named and ended.

It ends by itself, too, but only after `SILENCE_S`, and until then its processes would
share the processors with the next run.

Others than ours start runs, too: JupyterLab's account by `gpubed-horovodrun`. Root alone may
look at all of them, and takes no word of theirs for more than a file's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Self

from gpubed.core import parallel
from gpubed.core.paths import ClusterPaths
from gpubed.jobs.launchers.ssh import HEARTBEAT, SILENCE_S
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, CommandTimedOut

# Whoever owns a run beats every 5 s; a head that is busy may be late.
_BEATS_WITHIN_S = 15
# The heartbeat's file that a process names. In a confined container root may not look at other
# accounts' processes; each account may look at its own, and may stop what looks in its name.
_BEAT_OF = f"""
exec 2>/dev/null
beat_of() {{
  file=/proc/$1/environ; as=
  true < $file || as="setpriv --clear-groups $(stat -c '--reuid %u --regid %g' $file)"
  timeout -s KILL 5 $as sed -zn s/^{HEARTBEAT}=//p $file < /dev/null |
    tr '\\0' '\\n' | head -n 1
}}
"""
# A line for each process of a job: its number and that file. What only looks whether its rank
# is still there ends by itself.
_FIND = f"""{_BEAT_OF}
files=$(grep -lsz ^{HEARTBEAT}= /proc/[0-9]*/environ)
for file in /proc/[0-9]*/environ; do
  [ -O $file ] || true < $file || files="$files $file"
done
for file in $files; do
  pid=${{file#/proc/}}; pid=${{pid%/environ}}
  [ "$(cat /proc/$pid/comm)" != gpubed-rank ] || continue
  beat=$(beat_of $pid)
  [ ! "$beat" ] || printf '%s %s\\n' "$pid" "$beat"
done
"""
# A number may be another process's by now: each is looked at again.
# So is when it began, by root itself: its account may hold up the look until it is another's.
_END = f"""{_BEAT_OF}
beat=$1; shift
began() {{ sed 's/.*) //' /proc/$1/stat | cut -d ' ' -f 20; }}
for signal in TERM KILL; do
  for pid; do
    at=$(began $pid)
    [ "$(beat_of $pid)" = "$beat" ] && [ "$(began $pid)" = "$at" ] && kill -$signal $pid
  done
  [ $signal = KILL ] || sleep 3
done
"""
# Whether a heartbeat ($0) goes on: by its time, and where that is old, by what it says. Storage
# may be another machine's, whose clock is behind. What a process names may be a pipe, which
# nobody ever writes to, or any folder.
_IS_OWNED = f"""
exec 2>/dev/null
plain() {{ find "$0" -maxdepth 0 -type f -size -2 "$@"; }}
said() {{ plain -exec cat {{}} \\; ; }}
[ "$(plain)" ] || exit 1
before=$(said)
[ "$before" != end ] || exit 1
[ -z "$(plain -newermt '-{SILENCE_S} seconds')" ] || exit 0
for second in $(seq {_BEATS_WITHIN_S}); do
  sleep 1
  now=$(said)
  [ "$now" != end ] || exit 1
  # Empty is one that is being written.
  [ -z "$before" ] || [ -z "$now" ] || [ "$now" = "$before" ] || exit 0
  before=${{now:-$before}}
done
exit 1
"""
_OWNED = "timeout -s KILL 30 sh -c %s %s"
_AS_ROOT = "sudo -n timeout -s KILL 30 sh -c %s sh"
_CUT_OFF = 137
_PATH = re.compile(r"/[\w./+-]+")


class AtWork(str):
    """What is said of a run that has its owner still, and shares the nodes.

    Attributes:
        run: Its name.
    """

    run: str

    def __new__(cls, run: str, where: str) -> Self:
        """Say which run it is, and where it is at work."""
        words = f"run {run} is still at work ({where}): the two share its processors"
        made = super().__new__(cls, words)
        made.run = run
        return made


def processes(paths: ClusterPaths, node: Node) -> dict[str, list[str]] | None:
    """Return the processes of jobs on a node, by their heartbeats; None where that took too long.

    An account may hold up what looks at its processes, but no run for that.
    """
    try:
        with SSH(node, paths) as ssh:
            looked = ssh.run(_AS_ROOT, _FIND, check=False)
    except CommandTimedOut:
        return None
    if looked.exit_code == _CUT_OFF:
        return None
    beats: dict[str, list[str]] = {}
    for pid, _, beat in (line.partition(" ") for line in looked.stdout.splitlines()):
        if answers.whole(pid) is not None and _PATH.fullmatch(beat):
            beats.setdefault(beat, []).append(pid)
    return beats


def _is_owned(cluster: Cluster, beat: str) -> bool:
    with SSH(cluster.allocation.head, cluster.paths) as head:
        return head.run(_OWNED, _IS_OWNED, beat, check=False).exit_code == 0


def end(cluster: Cluster, is_over: Callable[[str], bool] = lambda _run: False) -> Iterator[str]:
    """End the processes of runs that have no owner any more; yields what was found, in words.

    Args:
        is_over: Whether a run has none, as is known here: a connection that broke unnoticed is
            noticed on its head only after `SILENCE_S`, and until then it computes and writes.
    """
    looked = parallel.each(lambda node: processes(cluster.paths, node), cluster.allocation.nodes)
    found = [beats or {} for beats in looked]
    for node, beats in zip(cluster.allocation.nodes, looked, strict=True):
        if beats is None:
            yield f"what is at work on {node.name} could not be looked at: something held it up"
    for beat in sorted({beat for beats in found for beat in beats}):
        run = PurePosixPath(beat).parent.name
        busy = {
            node: beats[beat]
            for node, beats in zip(cluster.allocation.nodes, found, strict=True)
            if beat in beats
        }
        where = ", ".join(f"{len(pids)} process(es) on {node.name}" for node, pids in busy.items())
        if not is_over(run) and _is_owned(cluster, beat):
            yield AtWork(run, where)
            continue
        yield f"run {run} has no owner any more; ended what it left: {where}"
        for node, pids in busy.items():
            with SSH(node, cluster.paths) as ssh, suppress(CommandTimedOut):
                ssh.run(f"{_AS_ROOT} %s {' '.join(pids)}", _END, beat, check=False)
