"""How much of a lease is left, and what that means. Pure: asks nothing itself.

What is left is counted by how long the node has been up, and by no clock that can be set: one
that jumps ends nothing. Where two disagree, the later end counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# After seconds that nobody saw, a look decides nothing: the next one does.
GAP_S = 600.0
# What a node does, the mildest first.
RUNS, WARNS, STOPS, OVER = PHASES = ("runs", "warns", "stops", "over")
# How a reason begins that `reason` has given.
OURS = "its lease ends at "
VERSION = 1
# What a controller says and a record keeps.
SAID = ("cluster", "name", "until", "warning", "stop", "everyone")
Record = dict[str, Any]


@dataclass(frozen=True)
class Now:
    """A moment as a node has it.

    Attributes:
        boot: Another one after each start of the machine.
        uptime: Seconds since then, those in which it slept among them.
        wall: Seconds since 1970, by a clock that may be wrong.
    """

    boot: str
    uptime: float
    wall: float


def told(before: Record | None, said: Mapping[str, Any], now: Now) -> Record:
    """Return the record of a lease of which a controller has told.

    Keys: `cluster` (its id), `name`, `until` (ISO 8601, UTC), `left_s` at `boot` and `uptime`,
    `warning` and `stop` (seconds before the end), `everyone` (whether all that people do here is
    the cluster's), `phase`, `told` (the phase that people were told of), and `asked`: when jobs
    were asked to end.

    Args:
        before: What was known; None where nothing was.
        said: `SAID`, and `left_s` by the controller's clock: it may be wrong as this node's may,
            so the later end counts.
    """
    left = max(float(said["left_s"]), datetime.fromisoformat(said["until"]).timestamp() - now.wall)
    known = before if before and before["cluster"] == said["cluster"] else None
    if known and known["until"] == said["until"]:
        # No news: a clock that has jumped since makes nothing later.
        left = min(left, fold(known, now)["left_s"])
    said = {key: said[key] for key in SAID}
    found = {"version": VERSION, **said, "left_s": left, "boot": now.boot, "uptime": now.uptime}
    # That it is less than before, the next look says: it may be the first after a long time.
    was = known["phase"] if known else RUNS
    phase = min(was, _phase(found), key=PHASES.index)
    last = {"told": known["told"], "asked": known["asked"]} if known else {}
    return {**found, "phase": phase, **({"told": RUNS, "asked": {}} | last)}


def fold(record: Record, now: Now) -> Record:
    """Return the record after a look.

    While the machine was off nothing is counted: how long that was, only a clock could tell.
    """
    same = record["boot"] == now.boot
    elapsed = now.uptime - record["uptime"] if same else 0.0
    left = record["left_s"] - max(0.0, elapsed)
    found = {**record, "left_s": left, "boot": now.boot, "uptime": now.uptime}
    if not same:
        found["asked"] = {}  # numbers of processes are others' by now
    steady = same and 0 <= elapsed <= GAP_S
    return {**found, "phase": _phase(found)} if steady else found


def _phase(record: Mapping[str, Any]) -> str:
    left = record["left_s"]
    if left <= 0:
        return OVER
    if left <= record["stop"]:
        return STOPS
    return WARNS if left <= record["warning"] else RUNS


def holds(record: Record | None) -> bool:
    """Say whether no job may start any more."""
    return record is not None and record["phase"] in (STOPS, OVER)


def words(record: Record) -> str:
    """Return what is written on terminals."""
    name, until = record["name"], _at(record)
    more = f"more time: gpubed renew {name}"
    ahead = f"{record['stop'] / 60:.0f} min before, jobs are asked to keep a checkpoint and end"
    said = {
        RUNS: f"{name} goes on: its lease now ends at {until}",
        WARNS: f"the lease of {name} ends at {until}; {ahead}; {more}",
        STOPS: f"the lease of {name} ends at {until}: jobs are asked to end; {more}",
        OVER: f"the lease of {name} ended at {until}: no job runs any more; {more}",
    }
    return f"gpubed: {said[record['phase']]}"


def reason(record: Record) -> str:
    """Return why no job starts on this node."""
    name = record["name"]
    return f"{OURS}{_at(record)}: gpubed renew {name}"


def _at(record: Record) -> str:
    return datetime.fromisoformat(record["until"]).strftime("%Y-%m-%d %H:%M UTC")
