"""Finds and ends processes that earlier runs left on the nodes.

They have the path of their heartbeat's file in their environment. Without heartbeats they end by
themselves after `SILENCE_S`, but until then they share the CPUs with the next run.

JupyterLab's account and others also start runs (`gpubed-horovodrun`), so root searches. It uses the
text in the environments of their processes only as the name of a file.
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

# The controller sends a heartbeat every 5 s; a busy head may write it late.
_BEATS_WITHIN_S = 15
# Prints the path of a process's heartbeat. In a confined container, root may not read environments
# of other accounts' processes, so `sed` runs as their account, which may stop it: hence `timeout`.
_BEAT_OF = f"""
exec 2>/dev/null
beat_of() {{
  file=/proc/$1/environ; as=
  true < $file || as="setpriv --clear-groups $(stat -c '--reuid %u --regid %g' $file)"
  timeout -s KILL 5 $as sed -zn s/^{HEARTBEAT}=//p $file < /dev/null |
    tr '\\0' '\\n' | head -n 1
}}
"""
# Prints PID and heartbeat's path of each process of a job, except `gpubed-rank` and `gpubed-exit`,
# which end with their rank.
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
# Reads heartbeat and start time again before each signal, as the PID may belong to another process
# by now. The account of a process could delay reading the heartbeat until the PID is reused.
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
# Exits with 0 if a heartbeat ($0) continues: by its time, or, if that is old, by its content, as
# the clock of the storage server may be late. Processes can set any path, such as a folder or a
# pipe without a writer: only small plain files are read.
_IS_OWNED = f"""
exec 2>/dev/null
plain() {{ find "$0" -maxdepth 0 -type f -size -2 "$@"; }}
content() {{ plain -exec cat {{}} \\; ; }}
[ "$(plain)" ] || exit 1
fresh=$(plain -newermt '-{SILENCE_S} seconds')
before=$(content)
[ "$before" != end ] || exit 1
[ -z "$fresh" ] || exit 0
for second in $(seq {_BEATS_WITHIN_S}); do
  sleep 1
  now=$(content)
  [ "$now" != end ] || exit 1
  # An empty heartbeat is being written.
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
    """Message about another run that is still active on the nodes.

    Attributes:
        run: The name of that run.
    """

    run: str

    def __new__(cls, run: str, where: str) -> Self:
        """Create the message from the name of a run and the places of its processes."""
        words = f"run {run} is still active ({where}): both runs share the CPUs"
        message = super().__new__(cls, words)
        message.run = run
        return message


def processes(paths: ClusterPaths, node: Node) -> dict[str, list[str]] | None:
    """Return the PIDs of jobs on a node, by path of the heartbeat; None if that took too long.

    Accounts can delay the search of their processes, which must not delay a run.
    """
    try:
        with SSH(node, paths) as ssh:
            found = ssh.run(_AS_ROOT, _FIND, check=False)
    except CommandTimedOut:
        return None
    if found.exit_code == _CUT_OFF:
        return None
    beats: dict[str, list[str]] = {}
    for pid, _, beat in (line.partition(" ") for line in found.stdout.splitlines()):
        if answers.whole(pid) is not None and _PATH.fullmatch(beat):
            beats.setdefault(beat, []).append(pid)
    return beats


def end(cluster: Cluster, is_over: Callable[[str], bool] = lambda _run: False) -> Iterator[str]:
    """End the processes of runs that lost their controller; yield a message about each run found.

    Args:
        is_over: Returns whether a run has surely lost its controller. The head notices a broken
            connection only after `SILENCE_S`; until then, the run computes and writes.
    """
    nodes = cluster.allocation.nodes
    results = parallel.each(lambda node: processes(cluster.paths, node), nodes)
    found = {node: beats or {} for node, beats in zip(nodes, results, strict=True)}
    for node, beats in zip(nodes, results, strict=True):
        if beats is None:
            yield f"the search for jobs on {node.name} took too long"
    for beat in sorted({beat for beats in found.values() for beat in beats}):
        run = PurePosixPath(beat).parent.name
        busy = {node: beats[beat] for node, beats in found.items() if beat in beats}
        where = ", ".join(f"{len(pids)} process(es) on {node.name}" for node, pids in busy.items())
        if not is_over(run):
            with SSH(cluster.allocation.head, cluster.paths) as head:
                is_owned = head.run(_OWNED, _IS_OWNED, beat, check=False).exit_code == 0
            if is_owned:
                yield AtWork(run, where)
                continue
        yield f"run {run} is over, or lost its controller; its processes were ended: {where}"
        for node, pids in busy.items():
            with SSH(node, cluster.paths) as ssh, suppress(CommandTimedOut):
                ssh.run(f"{_AS_ROOT} %s {' '.join(pids)}", _END, beat, check=False)
