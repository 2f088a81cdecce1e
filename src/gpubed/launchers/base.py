"""What a launcher must be able to do."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubed.allocation import Allocation
from gpubed.paths import ClusterPaths

OnOutput = Callable[[str], None]


@dataclass(frozen=True)
class Launch:
    """A job that is ready to start.

    Attributes:
        folder: The run's folder on shared storage; the working directory of each rank.
            Its `hostfile` names the nodes and their slots.
        command: The program and its arguments, the same for each rank.
        environment: Variables of each rank.
        ranks: World size.
    """

    folder: str
    command: Sequence[str]
    environment: dict[str, str]
    ranks: int


class Launcher(ABC):
    """Starts a job and waits for its end."""

    @abstractmethod
    def run(
        self, cluster: ClusterPaths, allocation: Allocation, launch: Launch, on_output: OnOutput
    ) -> int:
        """Run a job to its end; Ctrl-C ends its ranks on all nodes.

        Args:
            on_output: Called with each line that the job prints.

        Returns:
            The job's exit code.
        """


def on_head(cluster: ClusterPaths, allocation: Allocation, script: str) -> list[str]:
    """Return the command that runs a shell script on the head."""
    return ["ssh", "-F", str(cluster.ssh_config), allocation.head.name, script]


def follow(command: Sequence[str], on_output: OnOutput) -> int:
    """Run a command to its end, handing on each line; returns its exit code.

    An interruption ends the command here; ending what it started elsewhere is the caller's.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        for line in process.stdout or ():
            on_output(line.rstrip())
        return process.wait()
    finally:
        process.kill()
        process.wait()
