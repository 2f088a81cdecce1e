"""Copies files for `gpubed put` and `gpubed get`, and shows their progress."""

from __future__ import annotations

from collections.abc import Iterable

from gpubed.cli.ui import UI
from gpubed.configuration import unfinished
from gpubed.core import files, secret
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import interruption
from gpubed.nodes.transfer import Copier, Copy
from gpubed.testbeds.specification import load_cluster

_MOST_LISTED = 20  # files that were left out
_PROGRESS_S = 60.0  # from line to line, where no terminal replaces one


def copier(paths: ClusterPaths) -> Copier:
    """Return a copier to and from the shared storage of a cluster.

    Raises:
        UsageError: The cluster has no shared storage.
    """
    cluster = load_cluster(paths)
    if not cluster.allocation.nodes:
        raise UsageError(f"{cluster.plan.backend} lends no nodes to copy files to or from")
    unfinished.require_configured(cluster)
    secret.require_key(paths)
    return Copier(cluster)


def run(
    ui: UI, verb: str, copier: Copier, plans: Iterable[Copy], *, yes: bool, ask_from: float
) -> int:
    """Copy files; ask first if files would be replaced, or for `ask_from` bytes or more.

    Raises:
        UsageError: Two copies have the same destination, or the user did not confirm.
        GpubedError: The destination lacks space.
    """
    interruption.set_hint("what has arrived stays: the same command goes on from there")
    with ui.working("comparing with what is there"):
        copies = [*plans]
    if len({copy.place for copy in copies}) < len(copies):
        raise UsageError("two of them would have the same name", "one command for each")
    wanted, room = sum(copy.bytes for copy in copies), min(copy.room for copy in copies)
    if wanted > room:
        raise GpubedError(f"{files.size(wanted)} do not fit: {files.size(room)} are free there")
    replaced = [f"{copy.replaced} file(s) of {copy.place}" for copy in copies if copy.replaced]
    question = f"Replace {' and '.join(replaced)}?" if replaced else f"Copy {files.size(wanted)}?"
    must_ask = replaced or wanted >= ask_from
    if must_ask and not ui.confirm(question, yes=yes):
        raise UsageError(f"not confirmed, so nothing was copied: {question}", "-y says yes")
    every_s = 1.0 if ui.err.is_terminal else _PROGRESS_S
    for copy in copies:
        with ui.working(f"{copy.name}: {files.size(copy.bytes)} to copy") as show:
            copier.copy(copy, show, every_s)
        for sentence in copy.left_out[:_MOST_LISTED]:
            ui.mark("skip", sentence)
        if len(copy.left_out) > _MOST_LISTED:
            ui.mark("skip", f"{len(copy.left_out) - _MOST_LISTED} more")
        how = f"{copy.files} of {copy.all_files} file(s) copied, {files.size(copy.bytes)}"
        ui.say(f"{copy.place}: {how if copy.files else 'was here, and is the same'}")
    keys = ("name", "place", "files", "bytes", "all_files", "all_bytes", "replaced", "left_out")
    ui.document(verb, {"copied": [{key: getattr(copy, key) for key in keys} for copy in copies]})
    return 0
