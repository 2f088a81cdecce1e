"""gpubed renew."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from typer import Option

from gpubed.cli.options import ClusterName, Json, find, seconds
from gpubed.cli.ui import UI
from gpubed.cluster import lease as leases
from gpubed.cluster import lease_policy
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Cluster, NotUp
from gpubed.testbeds.specification import load_current

EXAMPLE = "gpubed renew vw --for 12h"
PLACE = ("Care", 20)
_LOOK_EVERY_S = 60.0
_ENOUGH_S = 60.0
_POLICY = "lease.duration in cluster.yml is what each renewal asks for"


def command(
    name: ClusterName,
    for_: str | None = Option(
        None, "--for", metavar="TIME", help="From now on; lease.duration if left out."
    ),
    until: datetime | None = Option(None, "--until", help="The end, in local time."),
    auto: bool = Option(
        False, "--auto", help="Go on until the end, and renew as lease.renewal allows."
    ),
    once: bool = Option(False, "--once", help="With --auto: look once, for a cron job."),
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
    after = seconds("--for", for_, "12h") if for_ else cluster.plan.spec.lease.duration
    end = until.astimezone() if until else leases.now() + timedelta(seconds=after)
    record = leases.renew(cluster, end)
    ui.document("renew", {"lease": record.document(), "lasts_longer": _lasts_longer(record, end)})
    code = _tell(ui, record, end)
    leases.tell_nodes(cluster)
    return code


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
        looked = lease_policy.look(cluster)
        record = looked.record
        if record.granted_until and looked.answered:
            granted = f"granted until {leases.local(record.granted_until)}"
            _tell_once(granted, told, ui.say if looked.renewed else ui.note)
        for one in looked.messages:
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
