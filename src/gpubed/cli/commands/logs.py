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
        help="Its name, the beginning of its name, or `last`.",
        autocompletion=completion.runs,
    ),
    follow: bool = Option(
        False, "--follow", "-f", help="Go on until it ends; exit code 1 if it fails."
    ),
    rank: int | None = Option(None, metavar="N", min=0, help="Show the output of this rank only."),
    as_json: Json = False,
) -> int:
    """Show the output of a run, at work or ended."""
    ui, paths = UI(as_json), find(name, from_state=True)
    if follow:
        interruption.end_quietly()
    following: Record | None = record.find(paths, run)
    lines, estimate = list[str](), Estimate()
    while following:
        part, output = following, RankOutput()
        if rank is not None and rank >= part.world_size:
            raise UsageError(
                f"run {part.run_id} has no rank {rank}", f"ranks are 0 to {part.world_size - 1}"
            )
        with ui.working(f"{part.run_id} is read") as show:
            for line in active.output(paths, part.run_id, follow=follow):
                ranked = OF_RANK.fullmatch(line)
                if rank is not None and (ranked is None or int(ranked[1]) != rank):
                    continue
                text = output.read(line) if rank is None else ranked and ranked[3]
                if text is None:
                    continue
                lines.append(text)
                progress = estimate.read(text) if follow else None
                ui.say(text, whole=True) if progress is None else show(progress)
        # An elastic training goes on with another run after the loss of a node.
        following = active.next_part(paths, part) if follow else None
    now = record.find(paths, part.run_id)
    ui.document("logs", {"run_id": now.run_id, "status": now.state, "lines": lines})
    ui.note(f"{now.run_id}: {now.state}")
    return 1 if follow and now.state != "ok" else 0
