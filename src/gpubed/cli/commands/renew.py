"""gpubed renew."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

import typer

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import before_end
from gpubed.cluster import lease as leases
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.units import parse_seconds
from gpubed.nodes.allocation import NotUp
from gpubed.nodes.cluster import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.specification import load_current

EXAMPLE = "gpubed renew vw --for 12h"
PLACE = ("Care", 20)
_LOOK_EVERY_S = 60.0
_ENOUGH_S = 60.0
_POLICY = "lease.duration in cluster.yml is what each renewal asks for"


def command(
    name: ClusterName,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="From now on; lease.duration if left out."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", help="The end, in local time.")
    ] = None,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Go on until the end, and renew as lease.renewal allows."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --auto: look once, for a cron job.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Ask the testbed for more time, and say what it granted. Nodes that mind the end are told."""
    if for_ and until:
        raise UsageError("--for and --until exclude each other")
    if auto and (for_ or until):
        raise UsageError("--auto follows cluster.yml: it takes neither --for nor --until", _POLICY)
    if once and not auto:
        raise UsageError("--once goes with --auto", "gpubed renew CLUSTER --auto --once")
    ui, cluster = UI(as_json), load_current(find(name))
    if auto:
        return _keep(ui, cluster, once)
    after = timedelta(seconds=_duration(for_, cluster.plan))
    end = until.astimezone() if until else leases.now() + after
    record = leases.renew(cluster, end)
    ui.document("renew", {"lease": record.document(), "lasts_longer": _lasts_longer(record, end)})
    code = _tell(ui, record, end)
    leases.tell_nodes(cluster)
    return code


def _duration(text: str | None, plan: ClusterPlan) -> float:
    if text is None:
        return plan.spec.lease.duration
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--for {text!r} {error}", "gpubed renew CLUSTER --for 12h") from None


def _lasts_longer(record: leases.Record, asked: datetime) -> bool:
    granted = record.granted_until
    return granted is not None and (granted - asked).total_seconds() > _ENOUGH_S


def _tell(ui: UI, record: leases.Record, asked: datetime) -> int:
    granted = record.granted_until
    if granted is None:
        ui.say("the nodes do not expire")
        return 0
    if _lasts_longer(record, asked):
        ui.say(f"it lasts longer already, and stays: granted until {leases.local(granted)}")
        return 0
    ui.say(f"granted until {leases.local(granted)}")
    if (asked - granted).total_seconds() > _ENOUGH_S:
        ui.error(f"the testbed granted less than was asked for ({leases.local(asked)})")
        return 4
    return 0


def _keep(ui: UI, cluster: Cluster, once: bool) -> int:
    told = set[str]()
    while True:
        looked = before_end.look(cluster)
        record = looked.record
        if record.granted_until and looked.answered:
            granted = f"granted until {leases.local(record.granted_until)}"
            _tell_once(granted, told, ui.say if looked.renewed else ui.note)
        for one in looked.said:
            words = f"{one.why}: {one.outcome}" if one.outcome else one.why
            if one.is_fault:
                ui.error(words)
            else:
                _tell_once(words, told, ui.note)
        state = record.state(cluster.plan.spec.lease.renewal.margin)
        if state == "unlimited" and looked.answered:
            ui.note("the nodes do not expire")
            return 0
        if state == "expired":
            again = f"gpubed up {cluster.name} --refresh"
            ui.error("the lease has ended", f"gpubed renew {cluster.name}" if record.own else again)
            return 1
        if once:
            ui.document("renew", {"lease": record.document()})
            return 0
        time.sleep(_LOOK_EVERY_S)
        cluster = _by_now(ui, cluster)


def _tell_once(words: str, told: set[str], tell: Callable[[str], None]) -> None:
    if words not in told:
        told.add(words)
        tell(words)


def _by_now(ui: UI, cluster: Cluster) -> Cluster:
    try:
        now = load_current(cluster.paths)
    except NotUp:
        raise
    except GpubedError as error:  # the file may be half written
        ui.error(error.message, error.hint)
        return cluster
    if now.allocation.uuid != cluster.allocation.uuid:
        raise GpubedError(
            f"{cluster.name} was made anew, and this was about the former one",
            f"gpubed renew {cluster.name} --auto",
        )
    return now
