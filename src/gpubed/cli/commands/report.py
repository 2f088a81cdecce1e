"""gpubed report."""

from pathlib import Path
from typing import Annotated

import typer

from gpubed import browser
from gpubed.cli import completion
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.errors import PrerequisiteMissing
from gpubed.report import analysis, findings, read, write

EXAMPLE = "gpubed report lab smoke --open"


def command(
    cluster: Cluster,
    campaign: Annotated[
        str | None,
        typer.Argument(
            help="A campaign that was measured; the newest if left out.",
            autocompletion=completion.measured,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where; else beside the campaign's points."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    as_json: Json = False,
) -> int:
    """Write what a campaign found: a page with figures and tables, CSV, JSON and SVG."""
    ui, paths = UI(as_json), find(cluster)
    measured = read.load(paths, read.chosen(paths, campaign))
    for file in measured.broken:
        ui.mark("fail", f"{file.file} is left out: {file.reason}")
    found = analysis.analyse(measured)
    folder = (out or measured.folder / "report").absolute()
    written = write.write(found, folder)
    ui.document("report", {**write.document(found), "files": list(map(str, written))})
    for text in findings.told(found):
        ui.say(text)
    ui.say(f"report: {written[0]}", whole=True)
    if show and not browser.show(written[0]):
        raise PrerequisiteMissing(
            "there is no browser on this machine", f"copy {written[0]} to one that has one"
        )
    return 0
