"""Starts a job through Slurm: it waits in the queue, and then has its nodes and GPUs exclusively.

The job's script calls `gpubed-srun`, which role slurm installs. The job has the run's name, by
which it is cancelled if the launcher is interrupted, even before `sbatch` has answered.
"""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress
from pathlib import PurePosixPath

from gpubed.core import reading
from gpubed.core.errors import GpubedError, UsageError
from gpubed.jobs.launcher import Launch, Launcher, on_head
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.output import SLURM_LOG, OnOutput, follow, slurm_cancel, slurm_follow
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan

_CANCEL_TIMEOUT_S = 60
# Submission and cancellation share a lock: a cancelled job is not submitted later.
_SUBMIT = (
    "cd %s && flock .submit sh -c '[ -e .cancelled ] || exec sbatch \"$@\"' - --parsable "
    f"--job-name=%s --nodes=%s --nodelist=%s --partition=%s --exclusive --mem=0 --no-requeue "
    f"--output={SLURM_LOG} --wrap %s"
)


class SlurmLauncher(Launcher):
    """`sbatch` on the head."""

    def require(self, plan: ClusterPlan) -> None:
        """Refuse a cluster without Slurm; see `Launcher.require`."""
        if plan.spec.services.slurm is None:
            raise UsageError(
                f"cluster {plan.cluster} has no Slurm",
                f"set services.slurm in cluster.yml, then: gpubed up {plan.cluster}",
            )

    def run(self, cluster: Cluster, launch: Launch, on_output: OnOutput) -> int:
        """Run a job to its end; see `Launcher.run`.

        Raises:
            GpubedError: Slurm is not on the head, or refuses the job.
        """
        name = PurePosixPath(launch.folder).name
        try:
            job = _submit(cluster, launch, name)
            on_output(f"slurm: submitted as job {job}")
            return follow(on_head(cluster, slurm_follow(launch.folder, job)), on_output)
        except BaseException:
            with suppress(subprocess.SubprocessError):
                cancel = slurm_cancel(launch.folder, name, _CANCEL_TIMEOUT_S, "flock .submit ")
                subprocess.run(
                    on_head(cluster, cancel),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=_CANCEL_TIMEOUT_S,
                )
            raise


def _submit(cluster: Cluster, launch: Launch, name: str) -> str:
    nodes = cluster.allocation.with_ranks
    environment = [f"{key}={value}" for key, value in launch.environment.items()]
    start = ["gpubed-srun", "--hosts", launch.hosts(cluster), "--", *launch.command]
    script = shlex.join(["exec", "env", *environment, *start])
    names = ",".join(node.name for node in nodes)
    # An exclusive job has all CPUs of its nodes, but GPUs only on request.
    gpus = sum(node.gpus for node in nodes)
    options = [f"--gpus={gpus}"] if gpus else []
    words = (launch.folder, name, len(nodes), names, _partition(cluster), script, *options)
    with SSH(cluster.allocation.head, cluster.paths) as head:
        answer = head.run(_SUBMIT + " %s" * len(options), *words, check=False)
    if answer.exit_code == 127:
        raise GpubedError(
            f"Slurm is not on the head of {cluster.name}", f"gpubed up {cluster.name}"
        )
    if answer.exit_code or not answer.stdout.strip():
        raise GpubedError(
            f"Slurm refuses the job: {reading.tail(answer.stderr)}", "sinfo on the head"
        )
    return answer.stdout.strip().split(";")[0]


def _partition(cluster: Cluster) -> str:
    """Return a partition with all nodes of the job; raise `UsageError` if there is none."""
    service = cluster.plan.spec.services.slurm
    groups = sorted({node.group for node in cluster.allocation.with_ranks})
    if found := service and service.partition_of(groups):
        return found
    raise UsageError(
        f"no partition of Slurm has all of the groups {', '.join(groups)}",
        "--on NODE,NODE chooses nodes of one partition; or add one to services.slurm.partitions",
    )


def create() -> SlurmLauncher:
    """Make the launcher; the registry calls this."""
    return SlurmLauncher()
