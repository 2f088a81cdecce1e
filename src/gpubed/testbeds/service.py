"""The interface of testbeds that run jobs themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class World:
    """One Horovod world of a task: a job of its own on a testbed that runs jobs."""

    label: str  # its name for messages; empty if it is the only one
    here: Path  # the local folder for its results; it exists when the world runs
    command: Sequence[str]  # what each rank runs
    ranks: int  # world size


@dataclass(frozen=True)
class Task:
    """A job that is ready to be passed to a testbed."""

    job: str
    source: Path  # the job's folder, which must be copied to the testbed
    run_id: str  # unique in the cluster
    here: Path  # the run's local folder
    worlds: Sequence[World]  # as many as the plan has nodes
    own: frozenset[str]  # names of gpubed's own files in a run's folder, which no result may have
    image: str | None = None  # the container image to run in, instead of the testbed's usual one


class JobService(ABC):
    """Runs tasks on a testbed that runs jobs, and fetches their results; needs no node."""

    ends_early: bool = False

    @abstractmethod
    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[str]:
        """Run all worlds to their ends; an interruption stops all of them on the testbed.

        Args:
            on_output: Called with each line that a world prints.

        Returns:
            For each world why it failed, with the end of its log; empty if it did not.
        """
