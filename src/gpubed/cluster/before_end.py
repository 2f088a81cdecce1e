"""What to save before a lease ends: a checkpoint, and the results of all runs."""

from __future__ import annotations

from gpubed.core.copying import NotAName, as_name
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.ssh import SSH, Unreachable
from gpubed.spec.plan import ClusterPlan

_COMMAND_S = 600.0


def prepare(cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> list[str]:
    """Do what `lease.before_end` says.

    Returns:
        What was done, in words.

    Raises:
        GpubedError: The head could not be reached, or the command failed; results are
            collected all the same.
    """
    wanted, done = plan.spec.lease.before_end, []
    with SSH(allocation.head, cluster) as head:
        try:
            if wanted.command:
                head.run("sh -c %s", wanted.command, timeout=_COMMAND_S)
                done.append(f"ran `{wanted.command}` on {allocation.head.name}")
        finally:
            if wanted.collect:
                runs = collect(head, cluster, plan)
                done.append(f"collected {len(runs)} run(s) into {cluster.runs}")
                done += [f"{name}: {why}" for name, left_out in runs.items() for why in left_out]
    return done


def collect(head: SSH, cluster: ClusterPaths, plan: ClusterPlan) -> dict[str, list[str]]:
    """Copy the runs whose results are not here yet.

    Returns:
        Of each, by its name, what was left out, in sentences.

    Raises:
        NotAName: The head lists a name that leads out of the folder of runs.
        GpubedError: Runs could not be copied, or not wholly; the others have been.
    """
    there = f"{plan.spec.storage.shared.path}/runs"
    listed = head.run("ls -1 %s 2> /dev/null || true", there).stdout.splitlines()
    names = [as_name(line) for line in listed]
    missing = [name for name in names if not (cluster.runs / name / "metrics.json").exists()]
    failed, came = dict[str, str](), dict[str, list[str]]()
    for name in missing:
        try:
            came[name] = head.get(f"{there}/{name}", cluster.runs / name)
        except (NotAName, Unreachable):
            raise
        except GpubedError as error:
            failed[name] = error.message
    if failed:
        each = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise GpubedError(
            f"{len(failed)} of {len(missing)} run(s) are not wholly in {cluster.runs}: {each}",
            f"see to what is named: gpubed ssh {cluster.name} head ls -l {there}",
        )
    return came
