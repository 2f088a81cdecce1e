"""`gpubed down`: removes a cluster, and what is kept of it but for results."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field

from gpubed import allocation as allocations
from gpubed import audit as audits
from gpubed import (
    costs,
    identities,
    registry,
    runlock,
)
from gpubed.backends.base import Existing
from gpubed.cluster.events import emit
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths
from gpubed.plan import from_file
from gpubed.stack import EngineName, Stack

RESULTS = ("runs", "campaigns")
"""Folders of a cluster's state that are the user's, and outlive it."""


@dataclass(frozen=True)
class Removal:
    """What `down` did.

    Attributes:
        removed: What is gone.
        kept: Data that was to stay.
        survivors: What should have gone and did not.
        others: What has the cluster's name and another UUID: nothing was done to it.
        unseen: What could not be looked at and may hold something of the cluster, with why.
    """

    removed: list[str]
    kept: list[str]
    survivors: list[str]
    others: list[Existing]
    unseen: list[str] = field(default_factory=list)


def data_of(cluster: ClusterPaths, engine: EngineName) -> list[Existing]:
    """Return the volumes that a cluster's data is on."""
    cluster.project.prepare()
    uuid, backend = audits.owner(Stack(cluster, engine))
    if backend is None or uuid is None:
        return []
    found = backend.existing(cluster.name) + backend.data_within(cluster.name)
    return [thing for thing in found if thing.uuid == uuid and thing.data]


def shared_disk(cluster: ClusterPaths) -> str:
    """Name the node on whose own disk the shared storage is, if it goes with that node."""
    with suppress(GpubedError):
        granted, wanted = allocations.load(cluster.allocation), from_file(cluster.spec)
        shared = wanted.spec.storage.shared
        if granted.nodes and shared.provider == "nfs":
            lent = registry.backend(granted.backend).removes_disks
            return (shared.server or granted.head.name) if lent else ""
    return ""


def down(cluster: ClusterPaths, engine: EngineName, *, keep_data: bool = False) -> Removal:
    """Remove everything that carries the cluster's id, and the cluster's state.

    Results of jobs (`runs/`) and of campaigns (`campaigns/`) are the user's and stay.

    Args:
        keep_data: Whether volumes stay, for the next `up` to take over.
    """
    cluster.project.prepare()
    with runlock.hold(cluster.state, "down"):
        stack = Stack(cluster, engine)
        stack.mend()
        uuid, backend = audits.owner(stack)
        if backend is None and identities.kept(cluster):
            raise GpubedError(
                f"the data of {cluster.name} was kept, and its specification, which says where, "
                "cannot be read",
                f"gpubed check {cluster.name}",
            )
        if backend:
            backend.require_engine(engine)

        def existing() -> list[Existing]:
            return backend.existing(cluster.name) if backend else []

        def left() -> list[Existing]:
            mine = [thing for thing in existing() if thing.uuid == uuid]
            return [thing for thing in mine if not (keep_data and thing.data)]

        within = backend.data_within(cluster.name) if backend and keep_data else []
        # Only through nodes, while there are some.
        stays = backend.remove_data(cluster.name) if backend and not keep_data else []
        known = audits.nodes(stack)
        # What is not in the state may hold on to what is.
        removed = audits.remove_unrecorded(stack, transient=True)
        result = stack.destroy(emit)
        removed += [
            f"{costs.kind_of(e)} {e.name}"
            for e in result.steps
            if e.op == "delete" and costs.kind_of(e) != "Volume"
        ]
        if backend:
            removed += audits.remove(backend, left())
        survivors = [str(thing) for thing in (*left(), *stays)]
        there = existing()
        unseen = backend.unseen(cluster.name, known) if backend else []
        kept = [
            thing for thing in there if thing.uuid == uuid and thing.data and keep_data
        ] + within
        if kept and uuid:
            identities.keep(cluster, uuid)
        others = [thing for thing in there if thing.uuid != uuid]
        # Of a cluster that nothing is known of, what is there may need the key that is kept.
        if not (survivors or unseen or (others and uuid is None)):
            records = {"uuid", *(backend.data_records if backend else ())} if kept else set()
            removed += _forget(cluster, {*RESULTS, *records})
    return Removal(removed, [str(thing) for thing in kept], survivors, others, unseen)


def _forget(cluster: ClusterPaths, but: set[str]) -> list[str]:
    """Remove what is kept of a cluster beside `but`; of a link, only the link."""
    root = cluster.project.root
    if cluster.state.is_symlink():  # where it leads to is the owner's, with all that is there
        if but <= set(RESULTS):
            cluster.state.unlink()
            return [f"link {cluster.state.relative_to(root)}"]
        return []
    gone = []
    for path in sorted(cluster.state.iterdir()):
        if path.name in but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        if path.name not in ("lock", runlock.MEASURING):
            gone.append(f"file {path.relative_to(root)}")
    if not any(cluster.state.iterdir()):
        cluster.state.rmdir()
    return gone
