"""`gpubed down`: removes a cluster and its local files, but for results."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpubed.cluster import audit as audits
from gpubed.cluster import removals
from gpubed.cluster.events import emit
from gpubed.core import addresses, record, runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.record import Record
from gpubed.core.text import nearest_name
from gpubed.engines.stack import EngineName, Stack
from gpubed.nodes.allocation import Cluster
from gpubed.spec import backend_config
from gpubed.testbeds.base import Existing
from gpubed.testbeds.history import Testbeds, Unasked
from gpubed.testbeds.specification import load_cluster

RESULTS = ("runs", "reports", "checkpoints", "campaigns")
"""Folders of a cluster's state that are the user's, and outlive it."""


@dataclass(frozen=True)
class Removal:
    """The outcome of a `down`."""

    removed: list[str]
    kept: list[str]  # data that was to be kept
    survivors: list[str]  # resources that could not be removed
    others: list[Existing]  # those with the cluster's name and another UUID; they are left alone
    # Places that could not be checked for resources of the cluster, each with the reason.
    unseen: list[str] = field(default_factory=list)
    unasked: list[Unasked] = field(default_factory=list)  # former testbeds, likewise
    without: list[str] = field(default_factory=list)  # what stays on the hosts named by `without`


def data_of(paths: ClusterPaths, engine: EngineName) -> list[Existing]:
    """Return the volumes that hold a cluster's data, but for those that stay anyway."""
    paths.prepare(leftovers=True)
    stack = Stack(paths, engine)
    uuid, asked = audits.uuid_of(stack), audits.testbeds(stack)
    if uuid is None:
        return []
    found = [*asked.existing().things, *asked.data_within()]
    mine = [thing for thing in found if thing.uuid == uuid and thing.data]
    return [thing for thing in mine if not thing.stays]


def without_data(paths: ClusterPaths, engine: EngineName) -> UsageError:
    """Return the error that says why there is no volume to keep."""
    paths.prepare(leftovers=True)
    stack = Stack(paths, engine)
    gone = ", ".join(map(str, audits.missing_data(stack, audits.testbeds(stack))))
    why = "; what was written is on the nodes' own disks" if audits.nodes(stack) else ""
    why = f" any more: {gone} is gone" if gone else why
    again = f"gpubed down {paths.name}   (first copy what is to stay)"
    return UsageError(f"there is no volume to keep{why}", again)


def shared_disk(paths: ClusterPaths) -> str:
    """Return the node whose own disk holds the shared storage, if it is lost with that node."""
    with suppress(GpubedError):
        return server_of_shared(load_cluster(paths))
    return ""


def server_of_shared(cluster: Cluster) -> str:
    """Return the node that the shared storage is lost with; empty if it outlives all nodes."""
    shared, allocation = cluster.plan.spec.storage.shared, cluster.allocation
    if allocation.nodes and shared.provider == "nfs":
        lent = backend_config.named(allocation.backend).removes_disks
        return (shared.server or allocation.head.name) if lent else ""
    return ""


def down(
    paths: ClusterPaths,
    engine: EngineName,
    *,
    keep_data: bool = False,
    without: Sequence[str] = (),
    whose: str = "",
) -> Removal:
    """Remove every resource with the cluster's id, and the cluster's state.

    Results of jobs (`runs/`, `reports/`, `checkpoints/`) and of campaigns (`campaigns/`) stay.
    Raises `AnotherTestbed` if the testbed that answers is not the one that the cluster was made on.

    Args:
        keep_data: Whether to keep volumes, which the next `up` takes over.
        without: Own hosts, by node or address, that are left as they are if they refuse a login.
        whose: What removes the cluster, if not a person; written to the record while it works.
    """
    paths.prepare(leftovers=True)
    with runlock.hold(paths.state, "down"):
        stack = Stack(paths, engine)
        stack.mend()
        audits.remember(stack)
        asked = audits.testbeds(stack)
        if not asked and record.uuid(paths):
            restore = (
                f"gpubed check {paths.name}" if paths.spec.exists() else f"restore {paths.spec}"
            )
            raise GpubedError(
                f"something of {paths.name} may have been kept, and its specification, which alone "
                "says where, cannot be read",
                f"{restore}; or if nothing of it is anywhere: rm {shlex.quote(str(paths.record))}",
            )
        asked.require_engine(engine)
        _note_without(paths, _left(stack, asked, without))
        try:
            return _remove(stack, asked, keep_data=keep_data, whose=whose)
        finally:
            _note_without(paths, set())


def _note_without(paths: ClusterPaths, hosts: set[str]) -> None:
    if set(record.read(paths).without) != hosts:
        with record.changed(paths) as known:
            known.without = sorted(hosts)


def _hosts_of_state(stack: Stack) -> dict[str, str]:
    found = {}
    for resource in stack.export().get("deployment", {}).get("resources") or ():
        outputs: Any = resource.get("outputs") or {}
        host = outputs.get("host")
        if outputs.get("kind") == "node" and isinstance(host, dict) and "address" in host:
            name = resource["urn"].rsplit("::", 1)[-1]
            found[name] = addresses.ssh(str(host["address"]), int(host.get("port", 22)))
    return found


def _left(stack: Stack, asked: Testbeds, without: Sequence[str]) -> set[str]:
    known, found = dict[str, str](), set[str]()
    if without:
        known = _hosts_of_state(stack)
        for testbed in asked:
            known = testbed.own_hosts() | known
    for name in without:
        if (where := known.get(name, name)) not in known.values():
            choice = nearest_name(name, sorted({*known, *known.values()}))
            raise UsageError(f"{stack.paths.name} has no own host {name!r}", choice)
        found.add(where)
    return found


def _remove(stack: Stack, asked: Testbeds, *, keep_data: bool, whose: str = "") -> Removal:
    paths, uuid = stack.paths, audits.uuid_of(stack)

    def is_kept(thing: Existing) -> bool:
        return thing.stays or (keep_data and thing.data)

    def left() -> list[Existing]:
        mine = [thing for thing in asked.existing().things if thing.uuid == uuid]
        return [thing for thing in mine if not is_kept(thing)]

    if uuid:  # without the state, only these notes tell where resources are
        asked.note()
        # From here on, missing resources are intended. A full disk must not prevent the removal.
        with suppress(OSError), record.changed(paths) as noted:
            noted.removing = whose
    within = asked.data_within() if keep_data else []
    # Such data can only be removed through nodes, while they exist.
    stays = [] if keep_data else asked.remove_data()
    known, uncleared = audits.nodes(stack), audits.nodes(stack, left=True)
    # Resources outside the state go first: a port or volume in use would block those in the
    # state. If they are themselves in use, they are removed at the end.
    removed: list[str] = []
    for thing in audits.unrecorded(stack, asked, transient=True):
        with suppress(GpubedError):
            removed += asked.remove([thing])
    looked_up = {"Network": audits.looked_up(stack)}
    result = stack.destroy(emit)
    removed += [
        f"{kind} {e.name}"
        for e in result.steps
        if e.op == "delete" and (kind := removals.kind_of(e)) != "Volume"
        if e.name not in looked_up.get(kind, ())
    ]
    removed += asked.remove(left())
    survivors = [str(thing) for thing in (*left(), *stays)]
    there = asked.existing()
    unseen = asked.unseen(known, uncleared)
    mine = [thing for thing in there.things if thing.uuid == uuid]
    kept = [thing for thing in mine if is_kept(thing)] + within
    left_away, unasked = asked.elsewhere(uuid, there.things) if uuid else ([], [])
    kept += [one.thing for one in left_away if is_kept(one.thing)]
    survivors += [str(one) for one in left_away if not is_kept(one.thing)]
    unasked = [*there.unasked, *unasked]
    if kept and uuid:
        record.keep_uuid(paths, uuid)
    others = [thing for thing in there.things if thing.uuid != uuid]
    without = [why for testbed in asked for why in testbed.left_as_is(uuid)] if uuid else []
    # If no UUID is known, existing resources may be the cluster's and need its key.
    if not (survivors or unseen or unasked or (others and uuid is None)):
        of_data = [paths.record.name, paths.specifications.name]
        of_data += [name for testbed in asked for name in testbed.backend.data_records]
        # The log of a watch says why the watch released the cluster.
        logs = [paths.logs.name] if whose and not paths.state.is_symlink() else []
        removed += _forget(paths, {*RESULTS, *logs, *(of_data if kept else ())})
    said = [str(thing) for thing in kept]
    return Removal(removed, said, survivors, others, unseen, unasked, without)


def _forget(paths: ClusterPaths, but: set[str]) -> list[str]:
    """Remove a cluster's files except `but`; if its folder is a link, remove only the link."""
    root = paths.project.root
    if paths.state.is_symlink():  # the target belongs to its owner
        if but <= set(RESULTS):
            paths.state.unlink()
            return [f"link {paths.state.relative_to(root)}"]
        with record.changed(paths) as known:
            known.removing = None  # `down` is done
        return []
    if paths.record.name in but:
        with record.changed(paths) as known:
            kept = Record(uuid=known.uuid, testbeds=known.testbeds)
            for name in Record.model_fields:
                setattr(known, name, getattr(kept, name))
    gone = []
    unnamed = {"lock", runlock.MEASURING, paths.watching.name, paths.writers.name}
    for path in sorted(paths.state.iterdir()):
        if path.name in but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        if path.name not in unnamed:
            gone.append(f"file {path.relative_to(root)}")
    if not any(paths.state.iterdir()):
        paths.state.rmdir()
    return gone
