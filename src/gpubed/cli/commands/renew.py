"""gpubed renew."""

import time
from datetime import datetime, timedelta
from typing import Annotated

import typer

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease, renewal
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
    end = until.astimezone() if until else lease.now() + after
    record = lease.renew(cluster, end)
    ui.document("renew", {"lease": record.document(), "lasts_longer": _lasts_longer(record, end)})
    code = _tell(ui, record, end)
    lease.tell_nodes(cluster)
    return code


def _duration(text: str | None, plan: ClusterPlan) -> float:
    if text is None:
        return plan.spec.lease.duration
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--for {text!r} {error}", "gpubed renew CLUSTER --for 12h") from None


def _lasts_longer(record: lease.Record, asked: datetime) -> bool:
    granted = record.granted_until
    return granted is not None and (granted - asked).total_seconds() > _ENOUGH_S


def _tell(ui: UI, record: lease.Record, asked: datetime) -> int:
    granted = record.granted_until
    if granted is None:
        ui.say("the nodes do not expire")
        return 0
    if _lasts_longer(record, asked):
        ui.say(f"it lasts longer already, and stays: granted until {lease.local(granted)}")
        return 0
    ui.say(f"granted until {lease.local(granted)}")
    if (asked - granted).total_seconds() > _ENOUGH_S:
        ui.error(f"the testbed granted less than was asked for ({lease.local(asked)})")
        return 4
    return 0


def _keep(ui: UI, cluster: Cluster, once: bool) -> int:
    """Watch a lease to its end; a testbed that does not answer is asked again."""
    said = set[str]()  # what a look need not say again
    while True:
        looked = renewal.look(cluster)
        _say(ui, looked, said)
        record = looked.record
        state = record.state(cluster.plan.spec.lease.renewal.margin)
        if state == "unlimited" and not looked.unasked:
            ui.note("the nodes do not expire")
            return 0
        if state == "expired":
            again = (
                f"gpubed renew {cluster.name}"
                if record.own
                else f"gpubed up {cluster.name} --refresh"
            )
            ui.error("the lease has ended", again)
            return 1
        if once:
            ui.document("renew", {"lease": record.document()})
            return 0
        time.sleep(_LOOK_EVERY_S)
        cluster = _by_now(ui, cluster)


def _by_now(ui: UI, cluster: Cluster) -> Cluster:
    """Return a cluster as it is by now: its nodes may be others, and its policy another.

    Raises:
        NotUp: It is down.
        GpubedError: Another cluster has its name.
    """
    try:
        now = load_current(cluster.paths)
    except NotUp:
        raise
    except GpubedError as error:
        ui.error(error.message, error.hint)
        return cluster
    if now.allocation.uuid != cluster.allocation.uuid:
        raise GpubedError(
            f"{cluster.name} was made anew, and this was about the former one",
            f"gpubed renew {cluster.name} --auto",
        )
    return now


def _say(ui: UI, looked: renewal.Looked, said: set[str]) -> None:
    """Say what a look did, and of the end what was not said before."""
    end = looked.record.granted_until
    until = lease.local(end) if end else ""
    granted = f"granted until {until}"
    if looked.refused:
        ui.error(f"not renewed: {looked.refused.message}")
    elif looked.asked:
        _tell(ui, looked.record, looked.asked)
        said.add(granted)
    elif end and not looked.unasked:
        _once(ui, granted, said)
    if looked.last:
        _once(ui, looked.last, said)
    for what in looked.prepared:
        ui.note(what)
    for fault in filter(None, (looked.unasked, looked.unprepared, looked.untold)):
        ui.error(fault.message, fault.hint)


def _once(ui: UI, text: str, said: set[str]) -> None:
    if text not in said:
        said.add(text)
        ui.note(text)
