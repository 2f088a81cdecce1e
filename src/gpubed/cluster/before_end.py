"""What to save before a lease ends: a checkpoint, and the results of all runs."""

from __future__ import annotations

from dataclasses import dataclass

from gpubed.core.copying import MayNotBeRead, NotAName, as_name
from gpubed.core.errors import GpubedError
from gpubed.jobs.runs import record
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, Unreachable

_COMMAND_S = 600.0
_NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"  # stands in a command's output for what is none
_UNKNOWN = "from the cluster; this controller has no record of such a run, so no verb lists it"
_NAMED = 20  # sentences; there may be any number of folders that are no run's
# Of what is there, what it is (`d` for a folder) and its name, which may have line ends in it.
_LIST = "find %s/ -mindepth 1 -maxdepth 1 ! -name '.*' -printf '%%y%%f\\0' 2> /dev/null || true"


@dataclass(frozen=True)
class Collected:
    """What was copied.

    Attributes:
        runs: The names of folders that are here now.
        told: What was left out, and which are no runs of this controller, in sentences.
    """

    runs: tuple[str, ...]
    told: tuple[str, ...]


def prepare(cluster: Cluster) -> list[str]:
    """Do what `lease.before_end` says.

    Returns:
        What was done, in words.

    Raises:
        GpubedError: The head could not be reached, or the command failed; results are
            collected all the same.
    """
    wanted, done = cluster.plan.spec.lease.before_end, []
    with SSH(cluster.allocation.head, cluster.paths) as head:
        try:
            if wanted.command:
                head.run("sh -c %s", wanted.command, timeout=_COMMAND_S)
                done.append(f"ran `{wanted.command}` on {cluster.allocation.head.name}")
        finally:
            if wanted.collect:
                came = collect(head, cluster)
                done.append(f"collected {len(came.runs)} run(s) into {cluster.paths.runs}")
                done += came.told
    return done


def collect(head: SSH, cluster: Cluster) -> Collected:
    """Copy the runs whose results are not here yet.

    What gpubed itself wrote of a run is on the controller alone, and stays as it is here: of the
    folders there, only the job's own files come. Those of a run that the controller knows nothing
    of, as after its state was lost, come without a record, so that no verb takes it for a run.

    Raises:
        NotAName: The head lists a name that leads out of the folder of runs.
        GpubedError: Runs could not be copied, or not wholly; the others have been.
    """
    here = cluster.paths.runs
    there = f"{cluster.plan.spec.storage.shared.path}/runs"
    names, told = _folders(head, there)
    missing = [name for name in names if not (here / name / "metrics.json").exists()]
    came, failed = list[str](), dict[str, str]()
    for name in missing:
        known = (here / name / record.FILE).exists()
        try:
            left_out = head.get(f"{there}/{name}", here / name, record.OWN)
        except (NotAName, Unreachable):
            raise
        except GpubedError as error:
            # Whoever can write there can make any number of folders that may not be read.
            if known or not isinstance(error, MayNotBeRead):
                failed[name] = error.message
                continue
            left_out = [error.message]
        came.append(name)
        told += [f"{_shown(name)}: {why}" for why in left_out]
        told += [] if known else [f"{_shown(name)}: {_UNKNOWN}"]
    if failed:
        each = "; ".join(f"{_shown(name)}: {why}" for name, why in failed.items())
        raise GpubedError(
            f"{len(failed)} of {len(missing)} run(s) are not wholly in {here}: {each}",
            f"see to what is named: gpubed ssh {cluster.name} head ls -l {there}",
        )
    more = [f"{len(told) - _NAMED} more are not named"] if len(told) > _NAMED else []
    return Collected(tuple(came), (*told[:_NAMED], *more))


def _folders(head: SSH, there: str) -> tuple[list[str], list[str]]:
    """Return the names of folders on the head, and in sentences what else is there."""
    names, odd = list[str](), list[str]()
    for listed in filter(None, head.run(_LIST, there).stdout.split("\0")):
        kind, name = listed[0], as_name(listed[1:])
        if _NOT_UTF_8 in name:
            odd.append(f"{_shown(name)} in {there} is left out: its name is not UTF-8")
        elif kind != "d":
            odd.append(f"{_shown(name)} in {there} is left out: it is no folder")
        else:
            names.append(name)
    return sorted(names), sorted(odd)


def _shown(name: str) -> str:
    """Return a name on one line."""
    return name if name.isprintable() else repr(name)
