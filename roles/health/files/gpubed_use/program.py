"""Records the use of this node and its idle time.

  gpubed-use look              from the timer: look, and remember
  gpubed-use status            look, and print what is known as JSON
  gpubed-use warn TEXT         write on all terminals; monitoring warns, too, until it is used
  gpubed-use unwarn TEXT       take it back
  gpubed-use own               what this login does is gpubed's own, as long as it lasts
  gpubed-use disown            it is no more

It ends nothing. A failed measurement counts as use.
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
# In memory: a restart counts as use, and ends warnings.
WARNED = Path("/run/gpubed-use-warned")
# Keys of gpubed's own logins, one per line; some may have ended.
OWN = Path("/run/gpubed-use-own")
# Role monitoring creates the folder.
METRICS = Path("/var/lib/gpubed/metrics/gpubed-use.prom")
# Accounts can delay the reading of their processes and servers; the look fails then.
MOST_S = 45


def look() -> judging.Record:
    """Look at the node, and return the new record; an unreadable record starts anew."""
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
    """Record whether the calling login is gpubed's own."""
    with keeping.alone(STATE):
        every = processes.every()
        asking = machine.login_of(os.getpid(), every)
        kept = {key for key in _own() if key != asking and machine.within((key,), every)}
        if is_own and asking:
            kept.add(asking)
        keeping.replace(OWN, "".join(f"{key}\n" for key in sorted(kept)))


def told(record: judging.Record) -> dict[str, Any]:
    """Return the document for the controller, by `judging` and the last look."""
    return {
        "idle_s": round(record["idle_s"], 1),
        "spell": record["spell"],
        "last": record["last"],
        "use": judging.total(record),
        "gpus": len(record["seen"]["gpus"]),
        "mute": record["seen"]["mute"],
    }


def publish(record: judging.Record) -> None:
    """Write metrics for the cluster's monitoring, if there is one."""
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
    """Run a verb; the exit code is 2 if it is unknown."""
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
