"""What a launcher must be able to do."""

from __future__ import annotations

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
