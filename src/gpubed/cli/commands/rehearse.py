"""gpubed rehearse."""

import re
import shlex
import sys
from typing import Any

from typer import Argument, Option

from gpubed.campaigns import predictions, probing
from gpubed.campaigns.rehearsal import Asked, Rehearsal
from gpubed.cli.commands.bench import Telling
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import health, unfinished
from gpubed.core import runlock
from gpubed.core.errors import UsageError
from gpubed.jobs import jobfile
from gpubed.nodes import link_rates
from gpubed.prediction import probed
from gpubed.report import analysis, read, summary, write
from gpubed.testbeds.specification import load_cluster

EXAMPLE = 'gpubed rehearse lab --gpu v100 --model resnet50 --batch 32,64,96 --link "1 Gbit/s"'
PLACE = ("Experiments", 18)
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def command(
    name: ClusterName,
    words: list[str] | None = Argument(None, metavar="", hidden=True),
    gpu: str = Option("v100", help="The GPU whose compute is emulated."),
    model: str = Option("resnet50", help="One of torchvision's classification models."),
    batch: str = Option("32,64,96", metavar="N,…", help="Images per GPU and step."),
    nodes: str | None = Option(None, metavar="1-10", help="Numbers of nodes; all by default."),
    link: str = Option(
        "1 Gbit/s", metavar="RATE,…", help="Rates of nodes' links on the testbed that is meant."
    ),
    rate: float | None = Option(
        None, min=0.001, help="images/s of one GPU; by default from the table of rates."
    ),
    precision: str = Option("fp32", help="What the GPU computes in: fp32, amp or bf16."),
    framework: str = Option("horovod", help="horovod or ddp."),
    steps: int = Option(10, min=2, help="Timed steps of each point."),
    settings: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="An argument of job imagenet, such as fusion_mb."
    ),
    factor: float = Option(
        1.0, min=1, help="The least factor by which times are stretched; more for a busy machine."
    ),
    new: bool = Option(
        False, "--new", help="Begin again; what is there is kept under a dated name."
    ),
    as_json: Json = False,
) -> int:
    """Rehearse a training: real communication, emulated compute.

    Repeat it to go on after an interruption.
    """
    ui, paths = UI(as_json), find(name)
    if words:
        raise UsageError(
            "gpubed cannot put emulated compute into a script: nothing could stand in for its "
            "forward and backward pass",
            f"gpubed run {paths.name} -- {' '.join(words)} computes on the nodes' processors; "
            "--model NAME rehearses the model that is nearest to yours",
        )
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    able = len(cluster.allocation.with_ranks)
    asked = Asked(
        model=model,
        gpu=gpu,
        batches=_numbers("--batch", batch),
        nodes=_numbers("--nodes", nodes or f"1-{able}"),
        links=tuple(_rate(one) for one in link.split(",")),
        precision=precision,
        framework=framework,
        rate=rate,
        steps=steps,
        settings=jobfile.parse_settings(settings or ()),
        factor=factor,
    )
    if (most := max(asked.nodes)) > able:
        raise UsageError(
            f"{most} nodes are more than the {able} that ranks could start on",
            f"--nodes 1-{able}, or raise `count` in cluster.yml: gpubed up {paths.name}",
        )
    bench = Rehearsal(cluster, asked, shlex.join(["gpubed", *sys.argv[1:]]))
    telling = Telling(ui, bench)
    with (
        runlock.hold(paths.state, "rehearse"),
        runlock.measuring(paths.state, "rehearse"),
        ui.working("rehearsal") as show,
    ):
        usable, _ = health.usable(cluster)
        if able > 1 and probed.read(paths, cluster.allocation.uuid) is None:
            probing.probe(usable, {}, show, links_only=True)
        bench.prepare(show, new=new)
        for said in bench.begin(new=new, again_failed=False):
            ui.note(said)
        telling.announce()
        ui.note(f"predictions: {bench.folder.path / predictions.FILE}")
        telling.show = show if ui.err.is_terminal else telling.show
        bench.run(telling)
    found = analysis.analyse(read.load(paths, bench.folder.path.name))
    written, document = write.write(found, bench.folder.path / "report")
    told = summary.lines(found)
    more: dict[str, Any] = {
        "emulated": True,
        "host": bench.host.model_dump(),
        "factors": {point.id: float(point.arguments["time_factor"]) for point in bench.points},
        "findings": document["findings"],
        "report": str(written[0]),
    }
    telling.result(None, "rehearse", **more)
    for line in summary.kind(found):
        ui.say(line)
    for about in ("Rehearsal", "Predicted", "Scaling"):
        if about in told:
            ui.say(told[about])
    ui.say(f"report: {written[0]}")
    return 1 if bench.series.failed() or telling.warned else 0


def _numbers(option: str, given: str) -> tuple[int, ...]:
    """Read `1-4,8`."""
    found: dict[int, None] = {}
    for part in given.split(","):
        ends = _RANGE.fullmatch(part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 0 < first <= last:
            raise UsageError(f"{option} {given!r} has no numbers of 1 or more", f"{option} 1-4,8")
        found |= dict.fromkeys(range(first, last + 1))
    return tuple(found)


def _rate(given: str) -> int:
    try:
        return link_rates.parse(given)
    except ValueError as error:
        raise UsageError(f"--link {given!r}: {error}", '--link "1 Gbit/s,10 Gbit/s"') from None
