"""Checks the health of this node.

  gpubed-health check                print what is wrong; 0 well, 1 not
  gpubed-health watch                quarantine after several failing looks; 0 once it has looked
  gpubed-health admit                before a job: 0 well, 1 in quarantine, now or before
  gpubed-health quarantine REASON    no job starts here until it is requalified
  gpubed-health fault REASON         the same, from a program of the node that found it broken
  gpubed-health requalify            end the quarantine, if nothing is wrong any more
  gpubed-health back                 the same for the program whose quarantine it is: what was
                                     seen meanwhile is no past, and puts it into one of its own
  gpubed-health status               everything as JSON; 0 well and in use, 1 not

Looks are cheap and passive: jobs may be running. Programs in
/etc/gpubed/quarantine.d are told of each change: `quarantine REASON` or `requalify`. Where one
fails, each watch tells it again.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpubed_health import command, gpus, keeping, machine, xids
from gpubed_health.keeping import Figure

EXPECTED = Path(os.environ.get("GPUBED_HEALTH_EXPECTED", "/etc/gpubed/health.json"))
STATE = Path(os.environ.get("GPUBED_HEALTH_STATE", "/var/lib/gpubed/health.json"))
SPARE = Path("/run/gpubed-health.json")  # while the disk is full or read-only
HOOKS = Path("/etc/gpubed/quarantine.d")
METRICS = Path("/var/lib/gpubed/metrics/gpubed-health.prom")  # role monitoring makes the folder
AGAIN_S = 5  # between looks before a job
# A check gets the expected values of the node, and a memory that the next check gets, too.
Look = Callable[[dict[str, Any], dict[str, Any]], Iterator[str]]
LOOKS: tuple[Look, ...] = (
    machine.disk,
    machine.units,
    machine.shared,
    machine.link,
    gpus.driver,
    gpus.gpus,
    xids.xids,
    machine.memory,
)


def problems(expected: dict[str, Any], memory: dict[str, Any]) -> list[str]:
    """Return all problems as sentences."""
    return [problem for look in LOOKS for problem in _looked(look, expected, memory)]


def _looked(look: Look, expected: dict[str, Any], memory: dict[str, Any]) -> Iterator[str]:
    try:
        yield from look(expected, memory)
    except Exception as error:  # a problem, too; the other looks go on
        yield f"the look at {look.__name__} failed: {type(error).__name__}: {error}"


def observe(expected: dict[str, Any], memory: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the problems of this node, and its state with the new memory."""
    found = problems(expected, memory)
    # A user may have changed the state meanwhile.
    return found, {**read_state(), "memory": memory}


def read_state() -> dict[str, Any]:
    """Return the state.

    Keys: `quarantine` (reason, since, and whether it is the node's own doing, or null),
    `failing_looks` in a row, `untold`: the words that a program of `HOOKS` has not heard, and
    `memory`: `requalified` (seconds since 1970) and what looks compare with.
    """
    fresh = {"quarantine": None, "failing_looks": 0, "untold": [], "memory": {}}
    path = SPARE if SPARE.exists() else STATE
    if not path.exists():
        return fresh
    try:
        return {**fresh, **json.loads(path.read_text())}
    except ValueError:
        # It may have been in quarantine.
        return {**fresh, "quarantine": _now(f"{path} cannot be read")}


def write_state(state: dict[str, Any]) -> None:
    """Write the state."""
    keeping.keep(STATE, SPARE, json.dumps(state, indent=2) + "\n")


def remember(state: dict[str, Any]) -> None:
    """Write the state if it has changed."""
    if state != read_state():
        write_state(state)


def tell(*words: str) -> bool:
    """Run the hooks for a change, such as Slurm's; return whether all succeeded."""
    failed = False
    for hook in sorted(HOOKS.glob("*")):
        code, text = command.run(str(hook), *words)
        if code:
            failed = True
            sys.stderr.write(f"{hook} {' '.join(words)} failed: {text}\n")
    return not failed


def announce(*words: str) -> None:
    """Run the hooks for a change, and keep the change if one fails, as while Slurm restarts."""
    untold = [] if tell(*words) else list(words)
    state = read_state()
    if state["untold"] != untold:
        write_state({**state, "untold": untold})


def _now(reason: str, *, own: bool = False) -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"reason": reason, "since": since, "own": own}


def publish(state: dict[str, Any], found: Sequence[str]) -> None:
    """Write the result for the cluster's monitoring, if there is one."""
    reason = state["quarantine"]["reason"] if state["quarantine"] else ""
    figures = (
        Figure("gpubed_node_quarantined", bool(reason), {"reason": reason}),
        Figure("gpubed_node_problems", len(found)),
    )
    keeping.publish(METRICS, figures)


def quarantine(
    state: dict[str, Any], reason: str, found: Sequence[str] = (), *, own: bool = True
) -> None:
    """Put this node into quarantine; `own` if no user asked for it."""
    state = {**state, "quarantine": _now(reason, own=own)}
    write_state(state)
    publish(state, found)
    announce("quarantine", reason)


def check(found: Sequence[str], state: dict[str, Any]) -> int:
    """Print the problems, and the quarantine if there is one."""
    held = state["quarantine"]
    told = [f"in quarantine since {held['since']}: {held['reason']}"] if held else []
    for problem in (*told, *found):
        sys.stdout.write(f"{problem}\n")
    return 1 if told or found else 0


def watch(found: Sequence[str], state: dict[str, Any], patience: int) -> int:
    """Count failing checks in a row, and quarantine the node after several."""
    check(found, state)
    state["failing_looks"] = state["failing_looks"] + 1 if found else 0
    if found and state["failing_looks"] >= patience and not state["quarantine"]:
        quarantine(state, "; ".join(found), found)
    else:
        write_state(state)
        publish(state, found)
        if state["untold"]:
            announce(*state["untold"])
    return 0


def admit(expected: dict[str, Any], memory: dict[str, Any]) -> int:
    """Check until the node is well; quarantine it after as many failures as `watch` does.

    Slurm drains a node whose prolog fails; the end of a quarantine undrains it.
    """
    for look in range(max(1, expected["patience"])):
        if look:
            time.sleep(AGAIN_S)
        found, state = observe(expected, memory)
        if not found or state["quarantine"]:
            remember(state)
            break
    else:
        quarantine(state, f"before a job: {'; '.join(found)}", found)
    return check(found, state)


def requalify(found: Sequence[str], state: dict[str, Any]) -> int:
    """End a quarantine if the node has no problem any more."""
    if found:
        return check(found, {**state, "quarantine": None})
    state = {**state, "quarantine": None, "failing_looks": 0}
    write_state(state)
    publish(state, found)
    announce("requalify")
    return 0


def back(found: Sequence[str], state: dict[str, Any], patience: int) -> int:
    """End the quarantine of a program; remaining problems cause a new quarantine."""
    if found and state["failing_looks"] >= patience:
        quarantine(state, "; ".join(found), found)
        return check(found, read_state())
    return requalify(found, state)


def main(verb: str, *words: str) -> int:
    """Run a verb; the exit code tells whether the node is well and in use."""
    expected, memory = json.loads(EXPECTED.read_text()), read_state()["memory"]
    if verb in ("quarantine", "fault") and words:
        state = read_state()
        if verb == "quarantine" or not state["quarantine"]:  # a person's stays one
            quarantine(state, " ".join(words), own=verb == "fault")
        return 0
    if verb not in ("check", "watch", "admit", "requalify", "back", "status"):
        sys.stderr.write(__doc__)
        return 2
    if verb == "requalify":
        # Earlier Xids do not count any more.
        memory = {**memory, "requalified": time.time()}
    if verb == "admit":
        return admit(expected, memory)
    found, state = observe(expected, memory)
    if verb == "watch":
        return watch(found, state, expected["patience"])
    if verb == "requalify":
        return requalify(found, state)
    if verb == "back":
        return back(found, state, expected["patience"])
    remember(state)
    if verb == "check":
        return check(found, state)
    answer = {"problems": found, "quarantine": state["quarantine"]}
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return 1 if found or state["quarantine"] else 0
