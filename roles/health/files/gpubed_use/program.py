"""Writes down what this node is used for, and since when it is not.

  gpubed-use look              from the timer: look, and remember
  gpubed-use status            look, and print what is known as JSON
  gpubed-use warn TEXT         write on all terminals; monitoring warns, too, until it is used
  gpubed-use unwarn TEXT       take it back
  gpubed-use own SECONDS       for so long, data on the network is gpubed's own; 0 ends that

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

from gpubed_use import judging, machine, terminals

EXPECTED = Path(os.environ.get("GPUBED_HEALTH_EXPECTED", "/etc/gpubed/health.json"))
STATE = Path(os.environ.get("GPUBED_USE_STATE", "/var/lib/gpubed/use.json"))
# In memory: a node that restarts is used, and a warning of before says nothing.
WARNED = Path("/run/gpubed-use-warned")
# Until when data on the network is gpubed's own, in seconds since boot.
OWN = Path("/run/gpubed-use-own")
# Role monitoring makes the folder.
METRICS = Path("/var/lib/gpubed/metrics/gpubed-use.prom")
# An account may hold up what looks at its processes or asks its servers: that is no look then.
MOST_S = 45


def look() -> judging.Record:
    """Look, and return all that is known by then; a record that cannot be read begins anew."""
    expected = json.loads(EXPECTED.read_text())
    with keeping.alone(STATE):
        record = _read()
        seen = machine.see(expected, record["seen"])
        own = _is_own(seen["uptime"])
        record = judging.fold(record, seen, int(time.time() // 3600), own=own)
        keeping.replace(STATE, f"{json.dumps(record)}\n")
    return record


def _is_own(uptime: float) -> bool:
    """Say whether the data since the last look is gpubed's own: who says so looks before."""
    try:
        return uptime <= float(OWN.read_text())
    except (OSError, ValueError):
        return False


def _own(seconds: float, uptime: float) -> None:
    if seconds > 0:
        keeping.replace(OWN, f"{uptime + seconds}\n")
    else:
        OWN.unlink(missing_ok=True)


def _read() -> judging.Record:
    try:
        found = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return judging.first()
    return found if found.get("version") == judging.VERSION else judging.first()


def told(record: judging.Record) -> dict[str, Any]:
    """Return what a controller is told.

    Keys: `idle_s`, `spell`, `last` and `use` as in `judging`, `gpus` that are there, `mute`.
    """
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
    lines = [f"gpubed_use_idle_seconds {record['idle_s']:.0f}"]
    for row in judging.total(record):
        # JSON quotes as Prometheus does.
        whose = f"user={json.dumps(row['user'])},job={json.dumps(row['job'])}"
        for name in judging.SECONDS:
            of = name.removesuffix("_s")
            lines.append(f'gpubed_use_seconds{{{whose},of="{of}"}} {row[name]}')
    if WARNED.exists():
        text = json.dumps(WARNED.read_text(), ensure_ascii=False)
        lines.append(f"gpubed_use_warned{{text={text}}} 1")
    keeping.publish(METRICS, lines)


def main(verb: str, *words: str) -> int:
    """Do what was asked; the exit code says whether it was understood."""
    signal.alarm(MOST_S)
    text = " ".join(words)
    if verb in ("warn", "unwarn"):
        terminals.tell(text)
    elif verb not in ("look", "status", "own"):
        sys.stderr.write(__doc__ or "")
        return 2
    record = look()
    if verb == "own":
        _own(float(words[0]), record["seen"]["uptime"])
    if verb == "warn":
        keeping.replace(WARNED, text)
    elif verb == "unwarn" or record["idle_s"] == 0:
        WARNED.unlink(missing_ok=True)  # a use ends it, also where no controller says so
    publish(record)
    if verb == "status":
        sys.stdout.write(f"{json.dumps(told(record))}\n")
    return 0
