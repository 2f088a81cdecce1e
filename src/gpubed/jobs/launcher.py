"""The interface of launchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubed.nodes.allocation import Cluster
from gpubed.nodes.output import OnOutput
from gpubed.nodes.ssh import in_sh
from gpubed.spec.plan import ClusterPlan


@dataclass(frozen=True)
class Launch:
    """A job that is ready to start.

    Attributes:
        folder: The run's folder on shared storage, which is the ranks' working directory. Its
            `hostfile` has the nodes with ranks and their slots.
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
        """Return the nodes with the number of processes on each, as `a:4,b:4`."""
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
