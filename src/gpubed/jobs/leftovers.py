"""Finds the processes that earlier runs left on the nodes, names and ends them.

They are found by the heartbeat's file in their environment. They end by themselves, too, but only
after `SILENCE_S`, and until then they share the processors with the next run.

Other accounts start runs, too: JupyterLab's by `gpubed-horovodrun`. Only root may look at all of
them, and uses what their processes say as the name of a file only.
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
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH, CommandTimedOut

# A run's owner beats every 5 s; a busy head may be late.
_BEATS_WITHIN_S = 15
# Prints the heartbeat's file that a process names. In a confined container root may not read the
# environment of other accounts' processes, so the reader runs as their account, which may stop it.
_BEAT_OF = f"""
exec 2>/dev/null
beat_of() {{
  file=/proc/$1/environ; as=
  true < $file || as="setpriv --clear-groups $(stat -c '--reuid %u --regid %g' $file)"
  timeout -s KILL 5 $as sed -zn s/^{HEARTBEAT}=//p $file < /dev/null |
    tr '\\0' '\\n' | head -n 1
}}
"""
# Prints PID and heartbeat's file of each process of a job. `gpubed-rank` and `gpubed-exit` end with
# their rank.
_FIND = f"""{_BEAT_OF}
files=$(grep -lsz ^{HEARTBEAT}= /proc/[0-9]*/environ)
for file in /proc/[0-9]*/environ; do
  [ -O $file ] || true < $file || files="$files $file"
done
for file in $files; do
  pid=${{file#/proc/}}; pid=${{pid%/environ}}
  case $(cat /proc/$pid/comm) in gpubed-rank | gpubed-exit) continue ;; esac
  beat=$(beat_of $pid)
  [ ! "$beat" ] || printf '%s %s\\n' "$pid" "$beat"
done
"""
# The PID may be another process's by now: the heartbeat is read again before each signal. So is the
# start time, by root, as the process's account could delay the first look until the PID is reused.
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
# Says whether a heartbeat ($0) goes on: by its time, or, if that is old, by its content, as the
# clock of the storage's machine may be behind. A process may name any path, such as a folder or a
# pipe without a writer: only small plain files are read.
_IS_OWNED = f"""
exec 2>/dev/null
plain() {{ find "$0" -maxdepth 0 -type f -size -2 "$@"; }}
said() {{ plain -exec cat {{}} \\; ; }}
[ "$(plain)" ] || exit 1
fresh=$(plain -newermt '-{SILENCE_S} seconds')
before=$(said)
[ "$before" != end ] || exit 1
[ -z "$fresh" ] || exit 0
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
    """Message about a run that still has its owner, and shares the nodes.

    Attributes:
        run: Its name.
    """

    run: str

    def __new__(cls, run: str, where: str) -> Self:
        """Make the message from the name of a run and where it is at work."""
        words = f"run {run} is still at work ({where}): the two share its processors"
        made = super().__new__(cls, words)
        made.run = run
        return made


def processes(paths: ClusterPaths, node: Node) -> dict[str, list[str]] | None:
    """Return the PIDs of jobs on a node, by heartbeat's file; None if that took too long.

    An account may delay the look at its processes; that must not delay a run.
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
    """End the processes of runs without an owner; yield a message about each run found.

    Args:
        is_over: Whether a run is known here to have no owner. A head notices a broken connection
            only after `SILENCE_S`, and until then the run computes and writes.
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
        yield f"run {run} is over, or lost its controller; its processes were ended: {where}"
        for node, pids in busy.items():
            with SSH(node, cluster.paths) as ssh, suppress(CommandTimedOut):
                ssh.run(f"{_AS_ROOT} %s {' '.join(pids)}", _END, beat, check=False)
