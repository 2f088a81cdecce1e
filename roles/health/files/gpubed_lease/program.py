"""Acts on the end of this node's lease, also without a controller.

  gpubed-lease look          from the timer: warn, ask jobs to end, end them, as it is due
  gpubed-lease tell JSON     a controller tells until when the lease lasts
  gpubed-lease forget        a controller tells that the node needs to do nothing
  gpubed-lease status        print what is known as JSON

It ends jobs and programs on GPUs. It removes nothing, and switches nothing off.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from gpubed_health import keeping
from gpubed_health import program as health
from gpubed_health.keeping import Figure
from gpubed_use import machine

from gpubed_lease import judging, runs

STATE = Path(os.environ.get("GPUBED_LEASE_STATE", "/var/lib/gpubed/lease.json"))
SPARE = Path("/run/gpubed-lease.json")  # while the disk is full or read-only
METRICS = Path("/var/lib/gpubed/metrics/gpubed-lease.prom")  # role monitoring makes the folder
MOST_S = 110


def now() -> judging.Now:
    """Return the present moment."""
    boot = machine.BOOT.read_text().strip()
    return judging.Now(boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


def read() -> judging.Record | None:
    """Return the record of this cluster's lease; None if it is missing or unreadable."""
    expected = json.loads(health.EXPECTED.read_text())
    with suppress(OSError, ValueError, LookupError, TypeError):
        found = json.loads((SPARE if SPARE.exists() else STATE).read_text())
        if found["version"] == judging.VERSION and found["cluster"] == expected.get("cluster"):
            return found
    return None


def _write(record: judging.Record) -> None:
    keeping.keep(STATE, SPARE, f"{json.dumps(record)}\n")


def act(record: judging.Record | None) -> judging.Record | None:
    """Do the due action, and return the new record."""
    _hold(record)
    if record is None:
        return None
    if record["told"] != record["phase"]:
        machine.tell(judging.words(record))
    asked = {}
    if judging.holds(record):
        over = record["phase"] == judging.OVER
        everyone = record["everyone"]
        asked = runs.end(record["asked"], record["uptime"], over=over, everyone=everyone)
    return {**record, "told": record["phase"], "asked": asked}


def _hold(record: judging.Record | None) -> None:
    """Put the node into quarantine, which keeps jobs away, or end that quarantine."""
    held = health.read_state()["quarantine"]
    if record and judging.holds(record):
        if not held:
            health.quarantine(health.read_state(), judging.reason(record))
    elif held and held["reason"].startswith(judging.OURS):
        health.main("back")


def publish(record: judging.Record | None) -> None:
    """Write metrics for the cluster's monitoring, if there is one."""
    figures = []
    if record:
        figures.append(Figure("gpubed_node_lease_left_seconds", record["left_s"]))
    if record and record["phase"] != judging.RUNS:
        figures.append(Figure("gpubed_node_lease_ending", 1, {"text": judging.words(record)}))
    keeping.publish(METRICS, figures)


def _known(verb: str, words: tuple[str, ...]) -> judging.Record | None:
    record = read()
    if verb == "tell":
        return judging.told(record, json.loads(" ".join(words)), now())
    if verb == "forget":
        for path in (STATE, SPARE):
            path.unlink(missing_ok=True)
        return None
    return record and judging.fold(record, now())


def main(verb: str, *words: str) -> int:
    """Run a verb; the exit code is 2 if it is unknown."""
    if verb not in ("look", "tell", "forget", "status"):
        sys.stderr.write(__doc__ or "")
        return 2
    signal.alarm(MOST_S)
    if verb == "status":
        sys.stdout.write(f"{json.dumps(read())}\n")
        return 0
    with keeping.alone(STATE):
        record = _known(verb, words)
        if record:
            _write(record)  # first: what follows may hang
        done = act(record)
        if done and done != record:
            _write(done)
        publish(done)
    return 0
