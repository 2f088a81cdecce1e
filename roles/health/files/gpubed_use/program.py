"""Writes down what this node is used for, and since when it is not.

  gpubed-use look              from the timer: look, and remember
  gpubed-use status            look, and print what is known as JSON
  gpubed-use warn TEXT         write on all terminals; monitoring warns, too, until it is used
  gpubed-use unwarn TEXT       take it back
  gpubed-use own               what this login does is gpubed's own, as long as it lasts
  gpubed-use disown            it is no more

It only looks: nothing is ended here, and what could not be asked counts as use.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gpubed_health import keeping
from gpubed_health.keeping import Figure

from gpubed_use import judging, machine, processes

EXPECTED = Path(os.environ.get("GPUBED_HEALTH_EXPECTED", "/etc/gpubed/health.json"))
STATE = Path(os.environ.get("GPUBED_USE_STATE", "/var/lib/gpubed/use.json"))
# In memory: a node that restarts is used, and a warning of before says nothing.
WARNED = Path("/run/gpubed-use-warned")
# Logins of gpubed's own, a line for each: one that has ended is none.
OWN = Path("/run/gpubed-use-own")
# Role monitoring makes the folder.
METRICS = Path("/var/lib/gpubed/metrics/gpubed-use.prom")
# An account may hold up what looks at its processes or asks its servers: that is no look then.
MOST_S = 45


def look() -> judging.Record:
    """Look, and return the record after that; one that cannot be read begins anew."""
    expected = json.loads(EXPECTED.read_text())
    with keeping.alone(STATE):
        record = _read()
        seen = machine.see(expected, record["seen"], _own())
        record = judging.fold(record, seen, int(time.time() // 3600))
        keeping.replace(STATE, f"{json.dumps(record)}\n")
    return record


def _read() -> judging.Record:
    try:
        found = json.loads(STATE.read_text())
        return found if found["version"] == judging.VERSION else judging.first()
    except (OSError, ValueError, LookupError, TypeError):
        return judging.first()


def _own() -> set[str]:
    """Return the keys of gpubed's own logins, of which some may have ended."""
    return {*OWN.read_text().splitlines()} if OWN.exists() else set()


def _keep_own(*, is_own: bool) -> None:
    """Note whether the login that asks is gpubed's own."""
    with keeping.alone(STATE):
        every = processes.every()
        asking = machine.login_of(os.getpid(), every)
        kept = {key for key in _own() if key != asking and machine.within((key,), every)}
        if is_own and asking:
            kept.add(asking)
        keeping.replace(OWN, "".join(f"{key}\n" for key in sorted(kept)))


def told(record: judging.Record) -> dict[str, Any]:
    """Return what a controller is told, of `judging` and of the last look."""
    return {
        "idle_s": round(record["idle_s"], 1),
        "spell": record["spell"],
        "last": record["last"],
        "use": judging.total(record),
        "gpus": len(record["seen"]["gpus"]),
        "mute": record["seen"]["mute"],
    }


def publish(record: judging.Record) -> None:
    """Leave the figures for the cluster's monitoring, where there is one."""
    figures = [Figure("gpubed_use_idle_seconds", record["idle_s"])]
    for row in judging.total(record):
        whose = {"user": row["user"], "job": row["job"]}
        figures += [
            Figure("gpubed_use_seconds", row[name], {**whose, "of": name.removesuffix("_s")})
            for name in judging.SECONDS
        ]
    if WARNED.exists():
        figures.append(Figure("gpubed_use_warned", 1, {"text": WARNED.read_text(encoding="utf-8")}))
    keeping.publish(METRICS, figures)


def main(verb: str, *words: str) -> int:
    """Do what was asked; the exit code says whether it was understood."""
    signal.alarm(MOST_S)
    text = " ".join(words)
    if verb in ("warn", "unwarn"):
        machine.tell(text)
    elif verb not in ("look", "status", "own", "disown"):
        sys.stderr.write(__doc__ or "")
        return 2
    record = look()
    if verb in ("own", "disown"):
        _keep_own(is_own=verb == "own")
    if verb == "warn":
        keeping.replace(WARNED, text)
    elif verb == "unwarn" or record["idle_s"] == 0:
        WARNED.unlink(missing_ok=True)  # a use ends it, also where no controller says so
    publish(record)
    if verb == "status":
        sys.stdout.write(f"{json.dumps(told(record))}\n")
    return 0
