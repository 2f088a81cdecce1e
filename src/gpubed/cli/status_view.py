"""Prints a cluster's status as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpubed.cli.ui import UI
from gpubed.cluster import lease, probe
from gpubed.configuration import node_lease, unfinished
from gpubed.configuration import usage as uses
from gpubed.core import files
from gpubed.core.runlock import Holder
from gpubed.core.units import duration
from gpubed.nodes.verification import POSTPONED
from gpubed.testbeds.base import Existing

# Nodes record their use every minute, sometimes late.
_IN_USE_S = 150
_PRECISION = "nodes look each minute: shorter runs, and the last minute of others, may be missing"


def described(thing: Existing) -> str:
    """Describe an existing resource with its size and age, if known."""
    size = files.size(thing.size) if thing.size is not None else ""
    age = f"made {ago((datetime.now(UTC) - thing.made).total_seconds())}" if thing.made else ""
    return ", ".join(filter(None, [str(thing), size, age]))


def remove_command(cluster: str, things: Sequence[Existing]) -> str:
    """Return the command that removes the resources of one UUID; data only if all hold data."""
    data = " --data" if all(thing.data for thing in things) else ""
    return f"gpubed audit {cluster} --remove --uuid {things[0].uuid}{data}"


def due(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Describe which roles are due, a line per set of nodes."""
    by_nodes: dict[str, list[str]] = {}
    for role in documents:
        by_nodes.setdefault(", ".join(role["nodes"]), []).append(role["name"])
    return [f"apply    {', '.join(names)} on {nodes}" for nodes, names in by_nodes.items()]


def cluster(ui: UI, name: str, document: dict[str, Any], *, whole: bool = False) -> None:
    """Show problems, nodes, verification (`whole`: each check), use, lease, services, next steps.

    `document` is that of `gpubed status --json`.
    """
    _unfinished(ui, name, document)
    if "jobs" in document:
        _jobs_only(ui, name, document)
        return
    begun = document["state"] in (unfinished.CONFIGURING, unfinished.INTERRUPTED)
    if document["state"] != unfinished.CONFIGURING:
        _problems(ui, name, document, begun=begun)
        _booting(ui, name, document)
    columns = ("name", "state", "role", "control_address", "experiment_address")
    rows = [[*(row[c] for c in columns), hardware(row["hardware"])] for row in document["nodes"]]
    ui.table(("node", *(c.replace("_", " ") for c in columns[1:]), "hardware"), rows)
    if document["verification"]:
        verification(ui, document["verification"], whole=whole)
        if not document["verification"]["current"]:
            ui.say(f"  nodes or roles have changed since: gpubed verify {name}")
    elif document["configured"] and not begun:
        ui.say(f"not verified as it is now: gpubed verify {name}")
    if not begun:  # nodes without their roles do not record their use
        _use(ui, document.get("use"))
    _lease(ui, name, document["lease"])
    for service in (service for service in document["services"] if not service["reason"]):
        ui.say(f"{service['name']}: {service['url']}")
    for line in document["pending"]:
        ui.say(line)
    if document["state"] != "ready":
        return
    offered = {service["name"] for service in document["services"]}
    verbs = [
        *([f"gpubed open {name} --print"] if "jupyterlab" in offered else []),
        *([f"gpubed run {name} digits"] if document["configured"] else []),
        f"gpubed ssh {name} head",
    ]
    ui.say(f"next: {'    '.join(verbs)}", whole=True)


def _booting(ui: UI, name: str, document: dict[str, Any]) -> None:
    for row in (row for row in document["nodes"] if boots(document, row)):
        ui.mark(
            "skip",
            f"{row['name']} is {row['state']}: `up` does not wait for the boot of nodes without "
            f"configuration; if it lasts: gpubed up {name}",
        )


def _unfinished(ui: UI, name: str, document: dict[str, Any]) -> None:
    if document["state"] == unfinished.CONFIGURING:
        ui.mark("skip", f"{name} is being configured: what is shown here may change")
    elif document["held_by"]:
        holder = Holder.model_validate(document["held_by"])
        ui.mark("skip", f"{holder} is at work: what is shown here may change")
    if document["state"] == unfinished.INTERRUPTED:
        hint = f"gpubed up {name} goes on with it"
        ui.mark("fail", f"the last configuration did not come to its end: {hint}")


def _problems(ui: UI, name: str, document: dict[str, Any], *, begun: bool) -> None:
    if document["state"] == "ready":
        ui.mark("pass", f"{name} is ready")
    for file in document["unreadable"]:
        ui.mark("fail", file["message"])
        ui.say(file["hint"], whole=True)
    for row in (row for row in document["nodes"] if row["reason"]):
        if begun and row["state"] == "failing":
            continue
        if row["state"] == probe.FULL:
            ui.mark("fail", f"{row['name']}: {row['reason']}")
            ui.say(probe.free(name, row["name"]), whole=True)
            continue
        ui.mark("fail", f"{row['name']} is {row['state']}, so jobs leave it out: {row['reason']}")
        if row["state"] == "quarantined" and not node_lease.is_reason(row["reason"]):
            ui.say(
                f"when it is repaired: gpubed health {name} --requalify {row['name']}", whole=True
            )
    for failure in document["failed"]:
        ui.mark("fail", f"{failure['node']} is left out: {failure['reason']}")
    lacking = lacks({**document, "services": []} if begun else document)
    if lacking and not begun:
        ui.mark("fail", f"not whole: gpubed up {name} puts it right")
    for reason in lacking:
        ui.mark("fail", reason)


def boots(document: dict[str, Any], row: dict[str, Any]) -> bool:
    """Return whether a bare node may still be booting: it does not answer, and no run waits."""
    silent = row["state"] in (probe.UNREACHABLE, probe.HIDDEN)
    return silent and not document["configured"]


def lacks(document: dict[str, Any]) -> list[str]:
    """Return the problems that `up` repairs; an unhealthy node that jobs skip is none."""
    others = [row for row in document["nodes"] if row["state"] != "ready" and not row["reason"]]
    return [
        *(f"{row['name']} is {row['state']}" for row in others if not boots(document, row)),
        *(service["reason"] for service in document["services"] if service["reason"]),
        *("{unit} on {node} is {state}".format(**unit) for unit in document["stopped"]),
        *([probe.RESHAPED] if document["reshaped"] else []),
    ]


def _use(ui: UI, use: dict[str, Any] | None) -> None:
    if use is None:
        return
    if rows := uses.shown(uses.Row.model_validate(row) for row in use["rows"]):
        shown = [
            (row.user or "unknown", row.job, *map(duration, (row.held_s, row.gpu_s, row.cpu_s)))
            for row in rows
        ]
        ui.table(("used in 24 h by", "job", "GPUs held", "GPUs computing", "CPUs"), shown)
        ui.say(_PRECISION)
    if use["idle_s"] < _IN_USE_S:
        ui.say(f"in use: {use['why']}")
    else:
        ui.say(f"idle for {duration(use['idle_s'])}; the last use was {use['why']}")


def _lease(ui: UI, name: str, record: dict[str, Any]) -> None:
    left = record["remaining_s"]
    if left is None:
        return
    end = lease.local(datetime.fromisoformat(record["granted_until"]))
    ui.say(f"lease: until {end}, {duration(max(0, left))} left")
    if record["ends_soon"]:
        ui.mark("fail", f"the lease ends soon: gpubed renew {name}")


def _jobs_only(ui: UI, name: str, document: dict[str, Any]) -> None:
    if document["jobs"]:
        rows = [(job["name"], job["id"], job["state"], job["reason"]) for job in document["jobs"]]
        ui.table(("job", "id", "state", "reason"), rows)
    else:
        ui.say("no nodes, and no jobs yet")
    for service in document["services"]:
        ui.say(f"{service['name']}: {service['url']}")
    if document["state"] == "ready":
        page = f"    gpubed open {name}" if document["services"] else ""
        ui.say(f"next: gpubed run {name} digits    gpubed resources {name}{page}")


def verification(ui: UI, summary: dict[str, Any], *, whole: bool = False) -> None:
    """Show a verification; `whole` adds the checks that passed or were skipped."""
    checks = summary["checks"]
    shown = [c for c in checks if c["result"] == "fail" or (whole and c["result"] != "skip")]
    if shown:
        rows = []
        for c in shown:
            value = f"{c['value']:.4g}" if isinstance(c["value"], float) else c["value"]
            measured = "" if value is None else f"{value} {c['unit']}"
            rows.append((c["result"], c["id"], c["node"], measured, c["limit"]))
        ui.table(("result", "check", "node", "measured", "limit"), rows)
    for check in (c for c in shown if c["reason"]):
        where = f" {check['node']}" if check["node"] else ""
        ui.say(f"{check['result']} {check['id']}{where}: {check['reason']}")
    skipped: dict[str, list[str]] = {}
    for check in (c for c in checks if c["result"] == "skip"):
        skipped.setdefault(check["reason"], []).append(check["id"])
    for reason, names in skipped.items():
        ids = ", ".join(dict.fromkeys(names))
        if whole:
            ui.say(f"- {ids}: {reason}")
        elif POSTPONED in reason:
            ui.say(f"not measured: {ids}: {ui.filled(reason)}")
    counts = "{passed} passed, {failed} failed, {skipped} skipped".format(**summary)
    if summary["simulated"]:
        counts += f", {summary['simulated']} simulated: no GPU computed"
    ui.say(f"verified {ago(summary['age_s'])}: {counts}")


def hardware(found: dict[str, Any] | None) -> str:
    """Describe a node's hardware in a few words."""
    if found is None:
        return ""
    gpus = Counter(gpu["name"] for gpu in found["gpus"])
    kind = " (simulated)" if found["simulated"] else ""
    parts = [f"{count} x {name}{kind}" for name, count in gpus.items()]
    parts += [hca["name"] for hca in found["hcas"]]
    memory = f"{found['memory_kib'] / 2**20:.0f} GiB"
    cpus = f"{found['cpus']} CPU{'s' if found['cpus'] != 1 else ''}"
    return ", ".join([cpus, memory, *parts])


def ago(seconds: float) -> str:
    """Format an age for people."""
    return f"{duration(seconds)} ago"
