"""Shows and carries out what `gpubed put` and `gpubed get` copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubed.cli.ui import UI
from gpubed.configuration import unfinished
from gpubed.core import files, secret
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import interruption
from gpubed.nodes.transfer import Copier, Copy
from gpubed.testbeds.specification import load_cluster

_NAMED = 20  # sentences
_EVERY_S = 60.0  # where no terminal replaces a line


def through(paths: ClusterPaths) -> Copier:
    """Return what copies to and from the shared storage of a cluster.

    Raises:
        UsageError: The cluster has none.
    """
    cluster = load_cluster(paths)
    if not cluster.allocation.nodes:
        raise UsageError(f"{cluster.plan.backend} lends no nodes to copy files to or from")
    unfinished.require_configured(cluster)
    secret.require_key(paths)
    return Copier(cluster)


def carry_out(
    ui: UI,
    verb: str,
    copier: Copier,
    foresee: Sequence[Callable[[], Copy]],
    confirmed: Callable[[str], bool],
    ask_from: float,
) -> int:
    """Copy what fits, after a question where it replaces files or is `ask_from` bytes or more.

    Raises:
        UsageError: Two have the same name, or the question was not answered by yes.
        GpubedError: It does not fit.
    """
    interruption.then("files that arrived stay: the same command completes the copy")
    with ui.working("looking what there is to copy"):
        copies = [one() for one in foresee]
    if len({one.place for one in copies}) < len(copies):
        raise UsageError("two of them would have the same name", "one command for each")
    wanted, room = sum(one.bytes for one in copies), min(one.room for one in copies)
    if wanted > room:
        raise GpubedError(
            f"{files.size(wanted)} would have to be copied, and {files.size(room)} are free there"
        )
    replaced = [f"{one.replaced} file(s) of {one.place}" for one in copies if one.replaced]
    question = f"Replace {' and '.join(replaced)}?" if replaced else f"Copy {files.size(wanted)}?"
    if (replaced or wanted >= ask_from) and not confirmed(question):
        raise UsageError(f"not confirmed, so nothing was copied: {question}", "-y says yes")
    every_s = 1.0 if ui.err.is_terminal else _EVERY_S
    for one in copies:
        with ui.working(f"{one.name}: {files.size(one.bytes)} to copy") as show:
            copier.copy(one, show, every_s)
        for sentence in one.left_out[:_NAMED]:
            ui.mark("skip", sentence)
        if len(one.left_out) > _NAMED:
            ui.mark("skip", f"{len(one.left_out) - _NAMED} more")
        how = f"{one.files} of {one.all_files} file(s) copied, {files.size(one.bytes)}"
        ui.say(f"{one.place}: {how}" if one.files else f"{one.place}: was here, and is the same")
    keys = ("name", "place", "files", "bytes", "all_files", "all_bytes", "replaced", "left_out")
    copied = [{key: getattr(one, key) for key in keys} for one in copies]
    ui.document(verb, {"copied": copied})
    return 0
