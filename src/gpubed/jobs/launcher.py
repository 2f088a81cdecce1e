"""The interface of launchers."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import cast

from gpubed.jobs.rank_output import parted
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import in_sh
from gpubed.spec.plan import ClusterPlan

OnOutput = Callable[[str], None]
_LONGEST_LINE = 2**16  # characters


@dataclass(frozen=True)
class Launch:
    """A job that is ready to start.

    Attributes:
        folder: The run's folder on shared storage; the working directory of each rank. Its
            `hostfile` names the nodes with ranks, and the number of ranks on each.
        command: The program and its arguments, the same for each rank.
        environment: Variables of each rank.
        ranks: Number of processes to start: the world size, or one per node.
        unwanted: Returns why the job has to end now, else an empty string; a launcher that ends
            jobs early calls it every few seconds.
    """

    folder: str
    command: Sequence[str]
    environment: dict[str, str]
    ranks: int
    unwanted: Callable[[], str] = lambda: ""

    def hosts(self, cluster: Cluster) -> str:
        """Return the nodes with the number of processes that each starts, as `a:4,b:4`."""
        nodes = cluster.allocation.with_ranks
        per_node = self.environment.get("GPUBED_PER_NODE")
        return ",".join(f"{node.name}:{1 if per_node else node.slots}" for node in nodes)


class Launcher(ABC):
    """Starts a job and waits for its end.

    Attributes:
        ends_early: Whether it ends a job once `Launch.unwanted` gives a reason.
    """

    ends_early: bool = False

    def require(self, plan: ClusterPlan) -> None:  # noqa: B027 (most need nothing)
        """Refuse a cluster that lacks what the launcher needs, before a run begins.

        Raises:
            UsageError: The cluster lacks it.
        """

    @abstractmethod
    def run(self, cluster: Cluster, launch: Launch, on_output: OnOutput) -> int:
        """Run a job to its end; Ctrl-C ends its ranks on all nodes.

        Args:
            on_output: Called with each line that the job prints.

        Returns:
            The job's exit code.
        """


def on_head(cluster: Cluster, script: str) -> list[str]:
    """Return the command that runs a shell script on the head."""
    head = cluster.allocation.head.name
    return ["ssh", "-F", str(cluster.paths.ssh_config), head, in_sh(script)]


def lines(stream: TextIOWrapper) -> Iterator[str]:
    """Yield each line that a job prints; a very long one in pieces, to bound memory.

    A line that a carriage return ended, which the next one of its stream replaces, keeps it.
    """
    stream.reconfigure(newline="")
    goes_on = False
    while piece := stream.readline(_LONGEST_LINE):
        if not (goes_on and piece in ("\n", "\r\n")):  # the line end of the piece before
            ended = piece.endswith(("\n", "\r"))
            *others, last = parted(piece.rstrip() if ended else piece)
            yield from others
            yield last + "\r" * piece.endswith("\r")
        goes_on = not piece.endswith(("\n", "\r"))


def follow(command: Sequence[str], on_output: OnOutput) -> int:
    """Run a command to its end, passing on each line; return its exit code.

    An interruption kills the command here; the caller ends what it started elsewhere.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout  # noqa: S101
    try:
        for line in lines(cast("TextIOWrapper", process.stdout)):
            on_output(line)
        return process.wait()
    finally:
        process.kill()
        process.wait()
