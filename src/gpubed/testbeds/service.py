"""What a testbed that runs jobs itself must be able to do with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class World:
    """One Horovod world of a task: a job of its own on a testbed that runs jobs.

    Attributes:
        label: What to call it to the user; empty when it is the only one.
        here: Where its results go on the controller; the folder exists when it runs.
        command: What each rank runs.
        ranks: World size.
    """

    label: str
    here: Path
    command: Sequence[str]
    ranks: int


@dataclass(frozen=True)
class Task:
    """A job that is ready to be handed to a testbed.

    Attributes:
        job: Its name.
        source: Its folder, which must travel to the testbed.
        run_id: Unique in the cluster.
        here: The run's folder on the controller.
        worlds: As many as the plan has nodes.
        own: Names of gpubed's own files in a run's folder: no result may have one of them.
        image: The container image to run in, instead of the testbed's usual one.
    """

    job: str
    source: Path
    run_id: str
    here: Path
    worlds: Sequence[World]
    own: frozenset[str]
    image: str | None = None


class JobService(ABC):
    """Hands a task to a testbed that runs jobs, and brings results back; needs no node."""

    ends_early: bool = False

    @abstractmethod
    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[str]:
        """Run all worlds to their ends; an interruption ends all of them on the testbed.

        Args:
            on_output: Called with each line that a world prints.

        Returns:
            For each world why it failed, with the end of its log; empty where it did not.

        Raises:
            Refused: The testbed takes none of them.
        """
