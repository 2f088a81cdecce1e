"""Starts a job with Horovod's launcher, from the head, over SSH.

Role horovod installs `gpubed-horovodrun`: `horovodrun` with the cluster's hostfile and the network
interface for jobs.

A job ends if its controller is lost. The controller sends a line (the last progress) to the head
every few seconds, and the head then writes a heartbeat to shared storage. Without heartbeats,
`gpubed-rank` ends its rank on each node.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import cast

from gpubed.jobs import job_progress
from gpubed.jobs.launcher import Launch, Launcher, on_head
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.output import OnOutput, lines

HEARTBEAT = "GPUBED_HEARTBEAT"
"""Environment variable of each process of a job, with the path of the heartbeat's file."""
SILENCE_S = 60
"""Seconds without a heartbeat after which a job has lost its controller."""
_BEAT_S = 5.0
_END_S = 30.0
# The job has a session of its own, so that one signal reaches all its processes on the head.
_START = """
cd {folder} || exit 1
exec 3<&0 </dev/null
setsid {command} 3<&- & job=$!
{{ beat=0
   while read -r -t {silence} -u 3 line; do
     beat=$((beat + 1)); echo $beat >.heartbeat
     [ -z "$line" ] || printf '%s\\n' "$line" >.progress
   done
   echo end >.heartbeat
   kill -TERM -- -$job; sleep 10; kill -KILL -- -$job
}} >/dev/null 2>&1 & owner=$!
wait $job; code=$?
kill $owner
echo end >.heartbeat
exit $code
"""


class SSHLauncher(Launcher):
    """`horovodrun` on the head."""

    ends_early = True

    def run(self, cluster: Cluster, launch: Launch, on_output: OnOutput) -> int:
        """Run a job to its end; see `Launcher.run`."""
        environment = {**launch.environment, HEARTBEAT: f"{launch.folder}/.heartbeat"}
        settings = [f"{name}={value}" for name, value in environment.items()]
        hosts = ["-H", launch.hosts(cluster), "-np", str(launch.ranks)]
        words = ["env", *settings, "gpubed-horovodrun", *hosts, "--", *launch.command]
        start = _START.format(
            folder=shlex.quote(launch.folder), command=shlex.join(words), silence=SILENCE_S
        )
        command = on_head(cluster, f"bash -c {shlex.quote(start)}")
        return _own(command, on_output, launch.unwanted)


def _own(command: Sequence[str], on_output: OnOutput, unwanted: Callable[[], str]) -> int:
    """Run a command while sending it heartbeats; return its exit code.

    Heartbeats end when this function returns or raises; the job then ends by itself.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C must not end the connection, over which the job is ended
    )
    assert process.stdin  # noqa: S101
    assert process.stdout  # noqa: S101
    ended, progress = threading.Event(), [""]
    beating = threading.Thread(target=_beat, args=(process, ended, progress, unwanted), daemon=True)
    beating.start()
    try:
        for line in lines(cast("TextIOWrapper", process.stdout)):
            if job_progress.is_progress(line):
                progress[:] = [line.rstrip("\r")]
            on_output(line)
        return process.wait()
    finally:
        ended.set()
        beating.join()
        if process.stdin.closed:
            process.stdin = None  # `communicate` would flush it
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)  # ends because the heartbeats have ended
        _kill(process)
        process.wait()


def _beat(
    process: subprocess.Popen[str],
    ended: threading.Event,
    progress: list[str],
    unwanted: Callable[[], str],
) -> None:
    assert process.stdin  # noqa: S101
    with suppress(OSError):  # the process has ended
        while not (ended.is_set() or unwanted()):
            process.stdin.write(f"{progress[0]}\n")
            process.stdin.flush()
            ended.wait(_BEAT_S)
        process.stdin.close()  # the head then ends the job
        if not ended.wait(_END_S):
            _kill(process)  # the head did not; ranks end without heartbeats


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill an ssh process and its children, which connect to jump hosts."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def create() -> SSHLauncher:
    """Make the launcher; the registry calls this."""
    return SSHLauncher()
