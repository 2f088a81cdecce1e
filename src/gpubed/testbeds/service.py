"""The interface of testbeds that run jobs themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class World:
    """One Horovod world of a task: a job of its own on a testbed that runs jobs.

    Attributes:
        label: Its name for messages; empty if it is the only one.
        here: The local folder for its results; it exists when the world runs.
        command: What each rank runs.
        ranks: World size.
    """

    label: str
    here: Path
    command: Sequence[str]
    ranks: int


@dataclass(frozen=True)
class Task:
    """A job that is ready to be passed to a testbed.

    Attributes:
        source: The folder that must be copied to the testbed, and of it `names`, relative to it.
        run_id: Unique in the cluster.
        here: The run's local folder.
        worlds: As many as the plan has nodes.
        own: Names of gpubed's own files in a run's folder, which no result may have.
        environment: Variables of each rank.
        per_node: Whether a world starts once, and starts its ranks itself.
        follow: Whether links of the folder stand for what they lead to, as files of jobs may.
        image: The container image to run in, instead of the testbed's usual one.
    """

    job: str
    source: Path
    names: Sequence[str]
    run_id: str
    here: Path
    worlds: Sequence[World]
    own: frozenset[str]
    environment: Mapping[str, str]
    per_node: bool = False
    follow: bool = True
    image: str | None = None


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
