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
    refresh: bool = Option(False, "--refresh", help="First look at what became of the nodes."),
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
    """Say whether `up` left nothing to put right.

    Services have answered a moment ago, and one that is slow now is no failure of the run; for
    the boot of bare nodes nobody waits.
    """
    rows = [row for row in document["nodes"] if not row["reason"]]
    well = all(row["state"] == "ready" or status_view.boots(document, row) for row in rows)
    return well and not document["stopped"]
