"""gpubed report."""

from dataclasses import replace
from pathlib import Path

from typer import Argument, Option

from gpubed.access import browser, tracking
from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.configuration import usage
from gpubed.core import files
from gpubed.core.errors import GpubedError, PrerequisiteMissing, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import curves
from gpubed.jobs.runs import record
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.allocation import load as load_allocation
from gpubed.report import analysis, campaign_reports, merge, page, plots, read, write
from gpubed.report.read import Measured
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed report lab smoke --open"
PLACE = ("Experiments", 20)
_POINTS = 1000  # of a curve


def command(
    name: ClusterName,
    campaign: str | None = Argument(
        None,
        help="A measured campaign, by default the newest; or a run.",
        autocompletion=completion.measured,
    ),
    others: list[str] | None = Option(
        None,
        "--with",
        metavar="CLUSTER[/CAMPAIGN]",
        help="Another campaign, to compare with; repeatable.",
        autocompletion=completion.measured_elsewhere,
    ),
    out: Path | None = Option(
        None, "--out", metavar="FOLDER", help="Where to write; by default the campaign's folder."
    ),
    here: bool = Option(False, "--here", help="Do not copy it to the cluster's JupyterLab."),
    show: bool = Option(False, "--open", help="Show the page in the browser."),
    as_json: Json = False,
) -> int:
    """Write the report of campaigns: page, figures, CSV, JSON, SVG.

    The report of a run is a page with its curves by step. If the cluster is up, its JupyterLab
    shows reports of campaigns in the folder campaign-reports.
    """
    ui, paths = UI(as_json), find(name)
    if campaign and not others and campaign not in read.names(paths):
        runs = (path.name for path in paths.runs.glob("*"))
        if campaign == "last" or any(run.startswith(campaign) for run in runs):
            return _of_run(ui, paths, campaign, out or paths.state / "reports", show=show)
    wanted = read.chosen(paths, campaign)
    named = [(paths, wanted), *(_other(given, paths, wanted) for given in others or ())]
    UI.cluster = paths.name  # for hints; `find` has set another one
    each = [replace(read.load(of, name), use=_use(ui, of)) for of, name in named]
    measured = merge.put(each) if others else each[0]
    for file in measured.broken:
        ui.mark("fail", f"{file.file} is left out: {file.reason}")
    found = analysis.analyse(measured)
    folder = (out or measured.folder / f"report{measured.suffix}").absolute()
    written, document = write.write(found, folder)
    url = None if here or out else _place(ui, paths, measured, written)
    places = {"files": list(map(str, written)), "jupyterlab": url}
    ui.document("report", {**document, **places})
    for text in document["findings"]:
        ui.say(text)
    ui.say(f"report: {written[0]}")
    if url:
        ui.say(f"in JupyterLab: {url}")
    if show:
        _show(written[0])
    return 0


def _of_run(ui: UI, paths: ClusterPaths, name: str, folder: Path, *, show: bool) -> int:
    run = record.find(paths, name)
    by_step = curves.read(paths.runs / run.run_id)
    thinned = {name: curves.thinned(points, _POINTS) for name, points in by_step.items()}
    drawn = {figure: figure.svg() for figure in plots.of_curves(thinned)}
    written = (folder / f"{run.run_id}.html").absolute()
    files.make(written.parent)
    files.write(written, page.of_run(run, drawn).encode("utf-8", errors="replace"))
    document = {"run_id": run.run_id, "metrics": run.metrics, "curves": thinned}
    ui.document("report", {**document, "files": [str(written)]})
    ui.say(f"report: {written}", whole=True)
    if show:
        _show(written)
    return 0


def _show(written: Path) -> None:
    if not browser.show(written):
        raise PrerequisiteMissing(
            "there is no browser on this machine", f"copy {written} to one that has one"
        )


def _other(given: str, first: ClusterPaths, like: str) -> tuple[ClusterPaths, str]:
    """Return the cluster and campaign of `--with`; by default the campaign named `like`."""
    cluster, _, name = given.partition("/")
    another = f"gpubed report {first.name} {like} --with {first.name}"
    if cluster not in first.project.clusters() and given in read.names(first):
        raise UsageError(
            f"{given} is no cluster, but a campaign of {first.name}", f"{another}/{given}"
        )
    paths = find(cluster, from_state=True)  # its results may remain after `down`
    if paths == first and not name:
        raise UsageError(
            f"--with {given} names no campaign, and the report is of one of {first.name} already",
            f"{another}/CAMPAIGN, which is one of: {', '.join(read.names(first))}",
        )
    usual = like if like in read.names(paths) else None
    return paths, read.chosen(paths, name or usual)


def _use(ui: UI, paths: ClusterPaths) -> tuple[usage.Row, ...]:
    if not paths.allocation.exists():
        return ()
    try:
        use = usage.look(Cluster(paths, load_plan(paths.spec), load_allocation(paths.allocation)))
    except GpubedError as error:
        ui.note(f"the use of the nodes of {paths.name} is not known: {error.message}")
        return ()
    return use.rows if use else ()


def _place(ui: UI, paths: ClusterPaths, measured: Measured, written: list[Path]) -> str | None:
    """Copy the report to MLflow and JupyterLab, if the cluster has them; return its URL there."""
    if not paths.allocation.exists():
        return None
    try:
        cluster = Cluster(paths, load_plan(paths.spec), load_allocation(paths.allocation))
        if cluster.allocation.nodes:
            tags = {"mlflow.runName": f"report of {measured.folder.name}"}
            run = tracking.begin(cluster, measured.campaign.job or measured.campaign.name, tags, {})
            tracking.end(cluster, run, "ok", files=written)
        if not cluster.allocation.nodes or cluster.plan.spec.services.jupyterlab is None:
            return None
        return campaign_reports.place(cluster, measured, written)
    except GpubedError as error:
        ui.note(f"JupyterLab of {paths.name} does not show it: {error.message}")
        return None
