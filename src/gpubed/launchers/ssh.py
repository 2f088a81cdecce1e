"""Starts a job with Horovod's own launcher, from the head, over SSH.

The role horovod puts `gpubed-horovodrun` on the nodes: `horovodrun` with the
cluster's hostfile and the experiment network's interface.
"""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress

from gpubed.allocation import Allocation
from gpubed.launchers.base import Launch, Launcher, OnOutput, follow, on_head
from gpubed.paths import ClusterPaths

_KILL_TIMEOUT_S = 30
# A session of its own, so that one signal reaches all that the job started here;
# horovodrun then ends the ranks on the other nodes.
_START = "cd {folder} && setsid --wait bash -c 'echo $$ > .pid; exec \"$@\"' - {command}"
_KILL = "kill -TERM -- -$(cat {folder}/.pid)"


class SSHLauncher(Launcher):
    """`horovodrun` on the head."""

    def run(
        self, cluster: ClusterPaths, allocation: Allocation, launch: Launch, on_output: OnOutput
    ) -> int:
        """Run a job to its end; see `Launcher.run`."""
        settings = [f"{name}={value}" for name, value in launch.environment.items()]
        hosts = ["--hostfile", f"{launch.folder}/hostfile", "-np", str(launch.ranks)]
        words = ["env", *settings, "gpubed-horovodrun", *hosts, "--", *launch.command]
        command = shlex.join(words)
        folder = shlex.quote(launch.folder)
        start = _START.format(folder=folder, command=command)
        try:
            return follow(on_head(cluster, allocation, start), on_output)
        except BaseException:
            with suppress(subprocess.SubprocessError):
                kill = on_head(cluster, allocation, _KILL.format(folder=folder))
                subprocess.run(kill, capture_output=True, check=False, timeout=_KILL_TIMEOUT_S)
            raise


def create() -> SSHLauncher:
    """Make the launcher; the registry calls this."""
    return SSHLauncher()
