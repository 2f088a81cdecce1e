"""gpubed logs."""

from typer import Argument, Option

from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.engines import interruption
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.rank_output import RankOutput
from gpubed.jobs.runs import active, record
from gpubed.jobs.runs.record import Record
from gpubed.nodes.output import OF_RANK

EXAMPLE = "gpubed logs lab last --follow"
PLACE = ("Work", 30)


def command(
    name: ClusterName,
    run: str = Argument(
        "last",
        metavar="[RUN]",
        help="Its name, the beginning of one, or `last`.",
        autocompletion=completion.runs,
    ),
    follow: bool = Option(
        False, "--follow", "-f", help="Go on until it ends; 1 unless it ended well."
    ),
    rank: int | None = Option(None, metavar="N", min=0, help="Show what this rank prints only."),
    as_json: Json = False,
) -> int:
    """Show what a run prints, at work or ended."""
    ui, paths = UI(as_json), find(name, from_state=True)
    if follow:
        interruption.is_the_end()
    meant: Record | None = record.find(paths, run)
    lines, estimate = list[str](), Estimate()
    while meant:
        part, output = meant, RankOutput()
        if rank is not None and rank >= part.world_size:
            raise UsageError(
                f"run {part.run_id} has no rank {rank}", f"ranks are 0 to {part.world_size - 1}"
            )
        with ui.working(f"{part.run_id} is read") as show:
            for line in active.output(paths, part.run_id, follow=follow):
                said = OF_RANK.fullmatch(line)
                if rank is not None and (said is None or int(said[1]) != rank):
                    continue
                told = output.read(line) if rank is None else said and said[3]
                if told is None:
                    continue
                line = told
                lines.append(line)
                progress = estimate.read(line) if follow else None
                ui.say(line, whole=True) if progress is None else show(progress)
        # A training that outlives its nodes goes on with another run.
        meant = active.next_part(paths, part) if follow else None
    now = record.find(paths, part.run_id)
    ui.document("logs", {"run_id": now.run_id, "status": now.state, "lines": lines})
    ui.note(f"{now.run_id}: {now.state}")
    return 1 if follow and now.state != "ok" else 0
