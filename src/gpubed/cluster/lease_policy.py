"""Renews a lease by its policy; saves results before its end or before a release."""

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
_UNKNOWN = "this controller has no record of such a run, so no verb lists it"
# Prints the type (`d` for a folder) and name of each entry; names may contain line ends.
_LIST = "find %s/ -mindepth 1 -maxdepth 1 ! -name '.*' -printf '%%y%%f\\0' 2> /dev/null || true"


@dataclass(frozen=True)
class Saved:
    """The copied runs, and sentences about entries that were left out or belong to no known run."""

    runs: tuple[str, ...]
    notes: tuple[str, ...]


def prepare(cluster: Cluster, *, again: bool = False) -> list[str]:
    """Run the command of `lease.before_end` and copy results; return sentences about what was done.

    This does not count as use of the nodes. With `again`, skips the command, which has just been
    run. Raises `GpubedError` if the head could not be reached, the command failed, or not
    everything could be saved; the rest is saved.
    """
    policy, lease, done = cluster.plan.spec.lease, leases.last_known(cluster.paths), list[str]()
    wanted, allocation = policy.before_end, cluster.allocation
    server = cluster.plan.spec.storage.shared.server
    serving = [n for n in allocation.nodes if n.name == server != allocation.head.name]
    with ExitStack() as stack:
        nodes = (allocation.head, *serving)
        sessions = [stack.enter_context(SSH(node, cluster.paths)) for node in nodes]
        stack.enter_context(usage.own(sessions))
        try:
            end = lease.granted_until
            again = again or (end is not None and end in (lease.ended_for, lease.commanded_for))
            if wanted.command and not again:
                sessions[0].run("sh -c %s", wanted.command, timeout=_COMMAND_S)
                done.append(f"ran `{wanted.command}` on {allocation.head.name}")
                leases.mark_commanded(cluster.paths, lease, policy)
        finally:
            if wanted.collect:
                done += _save(sessions[0], cluster)
    return done


def _save(head: SSH, cluster: Cluster) -> list[str]:
    done, faults = list[str](), list[GpubedError]()
    try:
        saved = collect(head, cluster)
        done.append(f"collected {len(saved.runs)} run(s) into {cluster.paths.runs}")
        done += saved.notes
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
        raise GpubedError("; ".join(fault.message for fault in faults), faults[0].hint)
    return done


def collect(head: SSH, cluster: Cluster) -> Saved:
    """Copy the runs whose results are missing on the controller, or changed since they were copied.

    Copies only the job's own files: the controller has the records of runs, and no verb lists a
    folder without one. Raises `NotAName` if the head lists a name that leads out of the folder of
    runs, `GpubedError` if not all runs could be copied; the others were.
    """
    local, remote = cluster.paths.runs, f"{cluster.plan.spec.storage.shared.path}/runs"
    names, notes = _folders(head, remote)
    copied, failed = list[str](), dict[str, str]()
    with checkpoint_backup.remembered(cluster) as memory:
        for name in names:
            folder, key = local / name, f"runs/{name}"
            ended, former = (folder / _FIGURES).exists(), memory.looked.get(key)
            if ended and (former is None or (folder / record.SUMS).exists()):
                continue  # it was copied, and perhaps sealed, at its own end
            try:
                entries = checkpoint_backup.below(head, f"{remote}/{name}")
                digest = checkpoint_backup.digest(entries)
                lacks = not ended and any(entry.path.parts == (_FIGURES,) for entry in entries)
                if digest == former and folder.is_dir() and not lacks:
                    continue
                notes += _copy(head, remote, folder)
            except (NotAName, Unreachable):
                raise
            except GpubedError as error:
                failed[name] = error.message
                continue
            memory.looked[key] = digest
            copied.append(name)
    if failed:
        each = "; ".join(f"{_shown(name)}: {why}" for name, why in failed.items())
        count = f"{len(failed)} of {len(failed) + len(copied)} run(s)"
        raise GpubedError(
            f"{count} could not be copied completely to {local}: {each}",
            f"inspect them: gpubed ssh {cluster.name} head ls -l {remote}",
        )
    return Saved(tuple(copied), tuple(checkpoint_backup.shortened(notes)))


def _copy(head: SSH, remote: str, folder: Path) -> list[str]:
    has_record, name = (folder / record.FILE).exists(), _shown(folder.name)
    try:
        left_out = head.get(f"{remote}/{folder.name}", folder, record.OWN)
    except MayNotBeRead as error:
        # Any user of the head can make an unreadable folder without a record.
        if has_record:
            raise
        left_out = [error.message]
    return [f"{name}: {why}" for why in (*left_out, *([] if has_record else [_UNKNOWN]))]


def _folders(head: SSH, remote: str) -> tuple[list[str], list[str]]:
    """Return the names of folders, and a sentence for each other entry."""
    names, notes = list[str](), list[str]()
    for entry in filter(None, head.run(_LIST, remote).stdout.split("\0")):
        kind, name = entry[0], as_name(entry[1:])
        if NOT_UTF_8 in name:
            notes.append(f"{_shown(name)} in {remote} is left out: its name is not UTF-8")
        elif kind != "d":
            notes.append(f"{_shown(name)} in {remote} is left out: it is no folder")
        else:
            names.append(name)
    return sorted(names), sorted(notes)


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)


class Message(NamedTuple):
    """A message about a lease; the reader may skip repetitions within a matter."""

    matter: Literal["lease", "last", "end", "nodes", ""]  # empty for a single event
    event: Literal["lease", "unasked"]
    why: str
    outcome: str = ""
    is_fault: bool = False  # whether a step failed, which the next look tries again


@dataclass
class LeaseLook:
    """The result of `look`: the lease, as last known if the testbed is silent, and messages."""

    record: Record
    answered: bool = True
    renewed: bool = False
    messages: list[Message] = field(default_factory=list)


def look(cluster: Cluster) -> LeaseLook:
    """Ask when a lease ends, renew it if due, save results before its end, and tell the nodes."""
    result, policy = _renewed(cluster), cluster.plan.spec.lease
    messages = result.messages
    if leases.is_ending(result.record, policy, unasked=not result.answered):
        ends = f"it ends {_end(result.record)}"
        try:
            done = prepare(cluster)
            leases.mark_prepared(cluster.paths, result.record)
            messages.append(Message("", "lease", ends, "; ".join(done)))
        except GpubedError as error:
            messages.append(Message("end", "lease", ends, f"not prepared: {error.message}", True))
        # A person may have renewed the lease in these minutes.
        after = leases.last_known(cluster.paths)
        result.record = after if after.granted_until else result.record
    try:
        leases.tell_nodes(cluster)
    except GpubedError as error:
        messages.append(Message("nodes", "lease", "nodes that act on it", error.message, True))
    return result


def _renewed(cluster: Cluster) -> LeaseLook:
    policy = cluster.plan.spec.lease
    result = LeaseLook(leases.last_known(cluster.paths))
    messages = result.messages
    try:
        result.record = leases.read(cluster)
        if last := leases.last_end(result.record, policy):
            why = f"lease.renewal.most is {format_seconds(policy.renewal.most)}"
            most = f"it lasts until {leases.local(last)} at most ({why})"
            messages.append(Message("last", "lease", f"{most}; more: gpubed renew {cluster.name}"))
        if until := leases.due(result.record, policy):
            if records.read(cluster.paths).removing is not None:
                raise Refused(f"a `down` was begun; to have it back: gpubed up {cluster.name}")
            result.record, result.renewed = leases.renew(cluster, until), True
            why, granted = f"asked until {leases.local(until)}", _end(result.record)
            messages.append(Message("lease", "lease", why, f"granted until {granted}"))
    except Refused as error:
        messages.append(Message("lease", "lease", f"it ends {_end(result.record)}", error.message))
    except GpubedError as error:
        result.answered, why = False, f"the lease: {error.message}"
        messages.append(Message("lease", "unasked", why, error.hint or "", True))
    return result


def _end(record: Record) -> str:
    return leases.local(record.granted_until) if record.granted_until else ""
