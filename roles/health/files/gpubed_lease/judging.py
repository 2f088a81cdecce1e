"""Computes the time left of a lease, and the action that is due; has no side effects.

Time is counted by uptime, so that clock changes end nothing. If clocks disagree, the later end
counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

GAP_S = 600.0  # after a longer time without a look, the next one decides nothing
RUNS, WARNS, STOPS, OVER = PHASES = ("runs", "warns", "stops", "over")
OURS = "its lease ends at "
VERSION = 1
SAID = ("cluster", "name", "until", "warning", "stop", "everyone")
Record = dict[str, Any]


@dataclass(frozen=True)
class Now:
    """A moment: the boot's id, seconds since then with sleep, and since 1970."""

    boot: str
    uptime: float
    wall: float


def told(before: Record | None, said: Mapping[str, Any], now: Now) -> Record:
    """Return the record of a lease after a controller has written it.

    Keys: `cluster` (its id), `name`, `until` (ISO 8601, UTC), `left_s` at `boot` and `uptime`,
    `warning` and `stop` (seconds before the end), `everyone` (whether all that people do here is
    the cluster's), `phase`, `told` (the phase that people were told of), and `asked`: when jobs
    were asked to end.

    Args:
        said: `SAID`, and `left_s` by the controller's clock.
    """
    left = max(float(said["left_s"]), datetime.fromisoformat(said["until"]).timestamp() - now.wall)
    known = before if before and before["cluster"] == said["cluster"] else None
    if known and known["until"] == said["until"]:
        # A clock change since then must not move the end to a later time.
        left = min(left, fold(known, now)["left_s"])
    said = {key: said[key] for key in SAID}
    found = {"version": VERSION, **said, "left_s": left, "boot": now.boot, "uptime": now.uptime}
    # Only a look advances the phase: this may be the first call after a long time.
    was = known["phase"] if known else RUNS
    phase = min(was, _phase(found), key=PHASES.index)
    last = {"told": known["told"], "asked": known["asked"]} if known else {}
    return {**found, "phase": phase, **({"told": RUNS, "asked": {}} | last)}


def fold(record: Record, now: Now) -> Record:
    """Return the record after a look; the time while the machine was off does not count."""
    same = record["boot"] == now.boot
    elapsed = now.uptime - record["uptime"] if same else 0.0
    left = record["left_s"] - max(0.0, elapsed)
    found = {**record, "left_s": left, "boot": now.boot, "uptime": now.uptime}
    if not same:
        found["asked"] = {}  # numbers of processes belong to others by now
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
    """Return whether jobs must not start any more."""
    return record is not None and record["phase"] in (STOPS, OVER)


def words(record: Record) -> str:
    """Return the message for terminals."""
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
    """Return the reason of the node's quarantine."""
    return f"{OURS}{_at(record)}: gpubed renew {record['name']}"


def _at(record: Record) -> str:
    return datetime.fromisoformat(record["until"]).strftime("%Y-%m-%d %H:%M UTC")
