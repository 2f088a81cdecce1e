"""Renews a lease by its policy; saves results before its end, or before a cluster is released."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from gpubed.cluster import checkpoint_backup, down
from gpubed.cluster import lease as leases
from gpubed.cluster.checkpoint_backup import NOT_UTF_8
from gpubed.cluster.lease import Record
from gpubed.configuration import usage
from gpubed.core import record as records
from gpubed.core.copying import MayNotBeRead, NotAName, as_name
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.units import format_seconds
from gpubed.jobs.runs import record
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH, Unreachable

_COMMAND_S = 600.0
_FIGURES = "metrics.json"
_UNKNOWN = "from the cluster; this controller has no record of such a run, so no verb lists it"
# Prints the type (`d` for a folder) and name of each entry; names may contain line ends.
_LIST = "find %s/ -mindepth 1 -maxdepth 1 ! -name '.*' -printf '%%y%%f\\0' 2> /dev/null || true"


@dataclass(frozen=True)
class Saved:
    """The runs that were copied, and sentences about parts left out and entries of no known run."""

    runs: tuple[str, ...]
    told: tuple[str, ...]


def prepare(cluster: Cluster, *, again: bool = False) -> list[str]:
    """Do what `lease.before_end` says, without counting as use of the nodes; return what was done.

    With `again`, the command has just been run, and is skipped. Raises `GpubedError` if the head
    could not be reached, the command failed, or not everything could be saved; the rest is
    collected all the same.
    """
    policy, known, done = cluster.plan.spec.lease, leases.known(cluster.paths), list[str]()
    wanted, allocation = policy.before_end, cluster.allocation
    server = cluster.plan.spec.storage.shared.server
    serving = [n for n in allocation.nodes if n.name == server != allocation.head.name]
    with ExitStack() as stack:
        nodes = (allocation.head, *serving)
        sessions = [stack.enter_context(SSH(node, cluster.paths)) for node in nodes]
        stack.enter_context(usage.own(sessions))
        try:
            if wanted.command and not (again or leases.is_commanded(known)):
                sessions[0].run("sh -c %s", wanted.command, timeout=_COMMAND_S)
                done.append(f"ran `{wanted.command}` on {allocation.head.name}")
                leases.commanded(cluster.paths, known, policy)
        finally:
            if wanted.collect:
                done += _save(sessions[0], cluster)
    return done


def _save(head: SSH, cluster: Cluster) -> list[str]:
    done, faults = list[str](), list[GpubedError]()
    try:
        came = collect(head, cluster)
        done.append(f"collected {len(came.runs)} run(s) into {cluster.paths.runs}")
        done += came.told
    except (NotAName, Unreachable):
        raise
    except GpubedError as error:
        faults.append(error)
    if down.server_of_shared(cluster):
        try:
            done += checkpoint_backup.collect(head, cluster)
        except GpubedError as error:
            faults.append(error)
    if faults:
        raise GpubedError("; ".join(one.message for one in faults), faults[0].hint)
    return done


def collect(head: SSH, cluster: Cluster) -> Saved:
    """Copy the runs whose results are not here yet, or have changed since they were copied.

    Only the job's own files are copied. The controller keeps the records of runs, and no verb lists
    a folder without one. Raises `NotAName` if the head lists a name that leads out of the folder of
    runs, `GpubedError` if not all runs could be copied; the others were.
    """
    here, there = cluster.paths.runs, f"{cluster.plan.spec.storage.shared.path}/runs"
    names, told = _folders(head, there)
    came, failed = list[str](), dict[str, str]()
    with checkpoint_backup.remembered(cluster) as memory:
        for name in names:
            folder, key = here / name, f"runs/{name}"
            ended, had = (folder / _FIGURES).exists(), memory.looked.get(key)
            if ended and (had is None or (folder / record.SUMS).exists()):
                continue  # it was copied, and perhaps sealed, at its own end
            try:
                inside = checkpoint_backup.below(head, f"{there}/{name}")
                looks = checkpoint_backup.looks(inside)
                lacks = not ended and any(one.path.parts == (_FIGURES,) for one in inside)
                if looks == had and folder.is_dir() and not lacks:
                    continue
                told += _bring(head, there, folder)
            except (NotAName, Unreachable):
                raise
            except GpubedError as error:
                failed[name] = error.message
                continue
            memory.looked[key] = looks
            came.append(name)
    if failed:
        each = "; ".join(f"{_shown(name)}: {why}" for name, why in failed.items())
        raise GpubedError(
            f"{len(failed)} of {len(failed) + len(came)} run(s) are not wholly in {here}: {each}",
            f"see to what is named: gpubed ssh {cluster.name} head ls -l {there}",
        )
    return Saved(tuple(came), tuple(checkpoint_backup.named(told)))


def _bring(head: SSH, there: str, folder: Path) -> list[str]:
    known, name = (folder / record.FILE).exists(), _shown(folder.name)
    try:
        left_out = head.get(f"{there}/{folder.name}", folder, record.OWN)
    except MayNotBeRead as error:
        # Any user can make an unreadable folder there; only a known run's is an error.
        if known:
            raise
        left_out = [error.message]
    return [f"{name}: {why}" for why in (*left_out, *([] if known else [_UNKNOWN]))]


def _folders(head: SSH, there: str) -> tuple[list[str], list[str]]:
    names, odd = list[str](), list[str]()
    for one in filter(None, head.run(_LIST, there).stdout.split("\0")):
        kind, name = one[0], as_name(one[1:])
        if NOT_UTF_8 in name:
            odd.append(f"{_shown(name)} in {there} is left out: its name is not UTF-8")
        elif kind != "d":
            odd.append(f"{_shown(name)} in {there} is left out: it is no folder")
        else:
            names.append(name)
    return sorted(names), sorted(odd)


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)


class Said(NamedTuple):
    """A message of a look; a repeated one of the same matter need not be told twice."""

    matter: Literal["lease", "last", "end", "nodes", ""]  # empty for what happens only once
    event: Literal["lease", "unasked"]
    why: str
    outcome: str = ""
    is_fault: bool = False  # whether something failed, and is tried again at the next look


@dataclass
class Looked:
    """A lease after a look, as last known if the testbed does not answer; and the messages."""

    record: Record
    answered: bool = True
    renewed: bool = False
    said: list[Said] = field(default_factory=list)


def look(cluster: Cluster) -> Looked:
    """Ask when a lease ends, renew it if due, prepare its end if that stays, and tell the nodes."""
    looked, policy = _asked(cluster), cluster.plan.spec.lease
    if leases.is_ending(looked.record, policy, unasked=not looked.answered):
        ends = f"it ends {_end(looked.record)}"
        try:
            done = prepare(cluster)
            leases.ended(cluster.paths, looked.record)
            looked.said.append(Said("", "lease", ends, "; ".join(done)))
        except GpubedError as error:
            looked.said.append(Said("end", "lease", ends, f"not prepared: {error.message}", True))
        # This takes minutes, in which a person may have renewed the lease.
        by_now = leases.known(cluster.paths)
        looked.record = by_now if by_now.granted_until else looked.record
    try:
        leases.tell_nodes(cluster)
    except GpubedError as error:
        looked.said.append(Said("nodes", "lease", "nodes that mind it", error.message, True))
    return looked


def _asked(cluster: Cluster) -> Looked:
    policy = cluster.plan.spec.lease
    looked = Looked(leases.known(cluster.paths))
    try:
        looked.record = leases.read(cluster)
        if last := leases.last_end(looked.record, policy):
            why = f"lease.renewal.most is {format_seconds(policy.renewal.most)}"
            most = f"it lasts until {leases.local(last)} at most ({why})"
            looked.said.append(Said("last", "lease", f"{most}; more: gpubed renew {cluster.name}"))
        if asked := leases.due(looked.record, policy):
            if records.read(cluster.paths).removing is not None:
                raise Refused(f"a `down` was begun; to have it back: gpubed up {cluster.name}")
            looked.record, looked.renewed = leases.renew(cluster, asked), True
            until, granted = f"asked until {leases.local(asked)}", _end(looked.record)
            looked.said.append(Said("lease", "lease", until, f"granted until {granted}"))
    except Refused as error:
        looked.said.append(Said("lease", "lease", f"it ends {_end(looked.record)}", error.message))
    except GpubedError as error:
        looked.answered, why = False, f"the lease: {error.message}"
        looked.said.append(Said("lease", "unasked", why, error.hint or "", True))
    return looked


def _end(record: Record) -> str:
    return leases.local(record.granted_until) if record.granted_until else ""
