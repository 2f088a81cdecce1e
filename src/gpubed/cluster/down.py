"""`gpubed down`: removes a cluster and its local files except results."""

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
"""Folders in a cluster's folder that hold the user's results; `down` keeps them."""


@dataclass(frozen=True)
class Removal:
    """The outcome of a `down`."""

    removed: list[str]
    kept: list[str]  # data that was kept as requested
    survivors: list[str]  # resources that could not be removed
    others: list[Existing]  # resources with the cluster's name and another UUID, left alone
    # Places that could not be checked for resources of the cluster, each with the reason.
    unseen: list[str] = field(default_factory=list)
    unasked: list[Unasked] = field(default_factory=list)  # former testbeds, likewise
    without: list[str] = field(default_factory=list)  # what stays on hosts in `without`


def data_of(paths: ClusterPaths, engine: EngineName) -> list[Existing]:
    """Return the volumes with a cluster's data that `down` would remove."""
    paths.prepare(leftovers=True)
    stack = Stack(paths, engine)
    uuid, testbeds = audits.uuid_of(stack), audits.testbeds(stack)
    things = [*testbeds.existing().things, *testbeds.data_within()] if uuid else ()
    return [each for each in things if each.uuid == uuid and each.data and not each.stays]


def without_data(paths: ClusterPaths, engine: EngineName) -> UsageError:
    """Return the error about `--keep-data` for a cluster without a volume."""
    paths.prepare(leftovers=True)
    stack = Stack(paths, engine)
    gone = ", ".join(map(str, audits.missing_data(stack, audits.testbeds(stack))))
    why = "; the data are on the nodes' own disks" if audits.nodes(stack) else ""
    why = f" any more: {gone} is gone" if gone else why
    again = f"gpubed down {paths.name}   (first copy the data that you need)"
    return UsageError(f"there is no volume to keep{why}", again)


def shared_disk(paths: ClusterPaths) -> str:
    """Return the node whose removal loses the shared storage; empty if none, or not known."""
    with suppress(GpubedError):
        return server_of_shared(load_cluster(paths))
    return ""


def server_of_shared(cluster: Cluster) -> str:
    """Return the node whose own disk has the shared storage; empty if storage outlives nodes."""
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
    originator: str = "",
) -> Removal:
    """Remove every resource with the cluster's UUID, and the cluster's state.

    Keeps results of jobs (`runs/`, `reports/`, `checkpoints/`) and of campaigns (`campaigns/`).
    Raises `AnotherTestbed` if the testbed that answers is not the cluster's.

    Args:
        keep_data: Whether to keep volumes, which the next `up` takes over.
        without: Own hosts, by node or address, that are left as they are if they refuse a login.
        originator: "watch", or empty for a person; the record has it until the removal is done.
    """
    paths.prepare(leftovers=True)
    with runlock.hold(paths.state, "down"):
        stack = Stack(paths, engine)
        stack.mend()
        audits.remember(stack)
        testbeds = audits.testbeds(stack)
        if not testbeds and record.uuid(paths):
            restore = (
                f"gpubed check {paths.name}" if paths.spec.exists() else f"restore {paths.spec}"
            )
            raise GpubedError(
                f"resources of {paths.name} may exist, but its specification, which names their "
                "testbed, cannot be read",
                f"{restore}; or if it has no resources: rm {shlex.quote(str(paths.record))}",
            )
        testbeds.require_engine(engine)
        _note_without(paths, _addresses(stack, testbeds, without))
        try:
            return _remove(stack, testbeds, keep_data=keep_data, originator=originator)
        finally:
            _note_without(paths, set())


def _note_without(paths: ClusterPaths, hosts: set[str]) -> None:
    if set(record.read(paths).without) != hosts:
        with record.changed(paths) as changed:
            changed.without = sorted(hosts)


def _addresses(stack: Stack, testbeds: Testbeds, without: Sequence[str]) -> set[str]:
    """Return the SSH addresses of own hosts, which are named by node or address."""
    if not without:
        return set()
    hosts = dict[str, str]()
    for resource in stack.export().get("deployment", {}).get("resources") or ():
        outputs: Any = resource.get("outputs") or {}
        host = outputs.get("host")
        if outputs.get("kind") == "node" and isinstance(host, dict) and "address" in host:
            name = resource["urn"].rsplit("::", 1)[-1]
            hosts[name] = addresses.ssh(str(host["address"]), int(host.get("port", 22)))
    for testbed in testbeds:
        hosts = testbed.own_hosts() | hosts
    for name in without:
        if hosts.get(name, name) not in hosts.values():
            choice = nearest_name(name, sorted({*hosts, *hosts.values()}))
            raise UsageError(f"{stack.paths.name} has no own host {name!r}", choice)
    return {hosts.get(name, name) for name in without}


def _remove(stack: Stack, testbeds: Testbeds, *, keep_data: bool, originator: str = "") -> Removal:
    paths, uuid = stack.paths, audits.uuid_of(stack)

    def is_kept(thing: Existing) -> bool:
        return thing.stays or (keep_data and thing.data)

    def left() -> list[Existing]:
        mine = [thing for thing in testbeds.existing().things if thing.uuid == uuid]
        return [thing for thing in mine if not is_kept(thing)]

    if uuid:
        testbeds.note()  # finds resources again if the state is lost
        # From here on, missing resources are intended. A full disk must not prevent the removal.
        with suppress(OSError), record.changed(paths) as changed:
            changed.removing = originator
    within = testbeds.data_within() if keep_data else []
    # Data within nodes can only be removed while the nodes exist.
    stays = [] if keep_data else testbeds.remove_data()
    nodes, uncleared = audits.nodes(stack), audits.nodes(stack, left=True)
    # Remove resources outside the state first, because a port or volume in use would block those
    # in the state. If they are in use themselves, they are removed at the end.
    removed: list[str] = []
    for thing in audits.unrecorded(stack, testbeds, transient=True):
        with suppress(GpubedError):
            removed += testbeds.remove([thing])
    looked_up = {"Network": audits.looked_up(stack)}
    result = stack.destroy(emit)
    removed += [
        f"{kind} {e.name}"
        for e in result.steps
        if e.op == "delete" and (kind := removals.kind_of(e)) != "Volume"
        if e.name not in looked_up.get(kind, ())
    ]
    removed += testbeds.remove(left())
    survivors = [str(thing) for thing in (*left(), *stays)]
    existing = testbeds.existing()
    unseen = testbeds.unseen(nodes, uncleared)
    kept = [e for e in existing.things if e.uuid == uuid and is_kept(e)] + within
    elsewhere, unasked = testbeds.elsewhere(uuid, existing.things) if uuid else ([], [])
    kept += [each.thing for each in elsewhere if is_kept(each.thing)]
    survivors += [str(each) for each in elsewhere if not is_kept(each.thing)]
    unasked = [*existing.unasked, *unasked]
    if kept and uuid:
        record.keep_uuid(paths, uuid)
    others = [thing for thing in existing.things if thing.uuid != uuid]
    without = [why for testbed in testbeds for why in testbed.left_as_is(uuid)] if uuid else []
    # Without a known UUID, existing resources may be the cluster's and need its key.
    if not (survivors or unseen or unasked or (others and uuid is None)):
        stay = {*RESULTS}
        if kept:
            stay |= {paths.record.name, paths.specifications.name}
            stay |= {name for testbed in testbeds for name in testbed.backend.data_records}
        # The log of a watch says why the watch released the cluster.
        if originator and not paths.state.is_symlink():
            stay.add(paths.logs.name)
        removed += _forget(paths, stay)
    return Removal(removed, list(map(str, kept)), survivors, others, unseen, unasked, without)


def _forget(paths: ClusterPaths, stay: set[str]) -> list[str]:
    """Remove a cluster's files except `stay`; if its folder is a link, remove only the link."""
    root = paths.project.root
    if paths.state.is_symlink():  # gpubed did not make the target
        if stay <= set(RESULTS):
            paths.state.unlink()
            return [f"link {paths.state.relative_to(root)}"]
        with record.changed(paths) as changed:
            changed.removing = None  # `down` is done
        return []
    if paths.record.name in stay:
        with record.changed(paths) as changed:
            kept = Record(uuid=changed.uuid, testbeds=changed.testbeds)
            for name in Record.model_fields:
                setattr(changed, name, getattr(kept, name))
    gone = []
    unnamed = {"lock", runlock.MEASURING, paths.watching.name, paths.writers.name}
    for path in sorted(paths.state.iterdir()):
        if path.name in stay:
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
