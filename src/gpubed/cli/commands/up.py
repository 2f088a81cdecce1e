"""gpubed up."""

from pathlib import Path
from typing import Any

from typer import Option

from gpubed.cli import status_view
from gpubed.cli.display import Display, asking
from gpubed.cli.options import ClusterName, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.cluster import status, up
from gpubed.cluster.events import event_file
from gpubed.engines import stack

EXAMPLE = "gpubed up lab"
PLACE = ("Cluster", 50)


def command(
    name: ClusterName,
    as_json: Json = False,
    yes: Yes = False,
    verify: bool = Option(False, "--verify", help="Verify again even if nothing changed."),
    refresh: bool = Option(False, "--refresh", help="First read what exists from the testbed."),
    events: Path | None = Option(None, "--events", help="Append one JSON object per event."),
    engine: EngineOption = None,
) -> int:
    """Allocate, configure and verify a cluster. Repeat it at any time."""
    ui, paths = UI(as_json), find(name)
    chosen = stack.choose(engine)
    display = Display(ui)
    approve = asking(ui, display, f"gpubed up {name} -y", yes=yes)
    with event_file(paths, "up", events) as path, display.following(path):
        done = up.up(paths, chosen, approve=approve, verify=verify, refresh=refresh)
    document = status.status(paths, chosen, condition=done.condition)
    ui.document("up", {**document, "phases": display.phases, "roles": display.roles})
    if not up.changed(done.result):
        last = document["verification"]
        age = f"; verified {status_view.ago(last['age_s'])}" if last else ""
        ui.note(f"nothing to change{age}")
    status_view.cluster(ui, name, document)
    return 0 if _is_whole(document) else 1


def _is_whole(document: dict[str, Any]) -> bool:
    """Return whether `up` left nothing to repair.

    Services do not count: they answered during the run, and may only be slow now. Nor do bare
    nodes that still boot.
    """
    rows = [row for row in document["nodes"] if not row["reason"]]
    ready = all(row["state"] == "ready" or status_view.boots(document, row) for row in rows)
    return ready and not document["stopped"]
