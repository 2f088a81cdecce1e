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
_POLL_S = 60.0
_TOLERANCE_S = 60.0  # smaller differences between wanted and granted ends do not count
_POLICY = "lease.duration in cluster.yml is what each renewal asks for"


def command(
    name: ClusterName,
    for_: str | None = Option(
        None, "--for", metavar="TIME", help="From now on; by default lease.duration."
    ),
    until: datetime | None = Option(None, "--until", help="The end, in local time."),
    auto: bool = Option(
        False, "--auto", help="Keep renewing, as lease.renewal allows, until the lease ends."
    ),
    once: bool = Option(False, "--once", help="With --auto: look once, for a cron job."),
    as_json: Json = False,
) -> int:
    """Ask the testbed for more time, and show the granted end.

    With `lease.on_nodes`, the nodes are told, too.
    """
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
    granted = record.granted_until
    excess_s = 0.0 if granted is None else (granted - end).total_seconds()
    lasts_longer = excess_s > _TOLERANCE_S
    ui.document("renew", {"lease": record.document(), "lasts_longer": lasts_longer})
    if granted is None:
        ui.say("the nodes do not expire")
    else:
        longer = "it lasts longer already, and stays: " if lasts_longer else ""
        ui.say(f"{longer}granted until {leases.local(granted)}")
    if is_short := excess_s < -_TOLERANCE_S:
        ui.error(f"the testbed granted less than was asked for ({leases.local(end)})")
    leases.tell_nodes(cluster)
    return 4 if is_short else 0


def _keep(ui: UI, cluster: Cluster, once: bool) -> int:
    shown = set[str]()

    def once_only(text: str, show: Callable[[str], None]) -> None:
        if text not in shown:
            shown.add(text)
            show(text)

    while True:
        looked = lease_policy.look(cluster)
        record = looked.record
        if record.granted_until and looked.answered:
            granted = f"granted until {leases.local(record.granted_until)}"
            once_only(granted, ui.say if looked.renewed else ui.note)
        for message in looked.messages:
            text = f"{message.why}: {message.outcome}" if message.outcome else message.why
            if message.is_fault:
                ui.error(text)
            else:
                once_only(text, ui.note)
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
        time.sleep(_POLL_S)
        cluster = _reloaded(ui, cluster)


def _reloaded(ui: UI, cluster: Cluster) -> Cluster:
    try:
        return load_current(cluster.paths)
    except NotUp:
        raise
    except GpubedError as error:  # cluster.yml may be half written
        ui.error(error.message, error.hint)
        return cluster
