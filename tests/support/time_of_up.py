"""Where the time of a first `up` goes: by phase, node, role and task, from its own events.

Ansible goes through its tasks one after the other, on all nodes at once: a task lasts until the
next one begins. A node works in what a task takes on it, and else waits for the slowest.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpubed.configuration.roles import PHASES
from support import kept

KEPT = Path(__file__).parents[1] / "bench" / "time_of_up.json"
SLOWEST = 12  # tasks that are shown
HEAD = """## Where the time of `up` goes

A new cluster of 3 containers of the local backend, caches warm: `make bench`. A task is done on
all nodes at once and lasts as long as on the slowest; what a node did itself is in brackets.

"""
BEFORE, CHECKS, AFTER = "allocate, start Ansible", "checks", "the rest"

Profile = dict[str, Any]


def profile(events: Iterable[dict[str, Any]]) -> Profile:
    """Return the seconds of a run by phase, role and task, and by node within each phase."""
    told = list(events)
    began, ended = told[0]["at"], told[-1]["at"]
    phases, nodes = {BEFORE: 0.0}, {}
    for event in told:
        if event["what"] == "phase" and event["status"] == "started":
            phases[event["phase"]] = event["at"]
        elif event["what"] == "phase" and event["status"] == "done":
            phases[event["phase"]] = event["at"] - phases[event["phase"]]
            nodes[event["phase"]] = event.get("nodes", {})
    first = next(event["at"] for event in told if event["what"] == "phase")
    phases[BEFORE] = first - began
    phases[AFTER] = ended - began - sum(phases.values())
    tasks = _tasks(told)
    roles: Counter[str] = Counter()
    for role, _, seconds in tasks:
        roles[role] += seconds
    return {
        "total": ended - began,
        "phases": phases,
        "nodes": nodes,
        "roles": dict(roles.most_common()),
        "tasks": sorted(tasks, key=lambda task: -task[2])[:SLOWEST],
    }


def _tasks(told: list[dict[str, Any]]) -> list[tuple[str, str, float]]:
    marks = [event for event in told if event["what"] in ("task", "phase", "resource")]
    return [
        (event["role"] or "playbook", event["task"], after["at"] - event["at"])
        for event, after in itertools.pairwise(marks)
        if event["what"] == "task"
    ]


def keep(found: Profile, load: str) -> None:
    """Write the profile down."""
    rounded = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 1))
    kept.measured(KEPT, load=load, **rounded)


def section() -> str:
    return kept.section(KEPT, HEAD, lambda found: f".\n\n{tables(found)}")


def tables(found: Profile) -> str:
    """Return a table by phase and node, one by role, and one of the slowest tasks."""
    names = sorted({name for by_node in found["nodes"].values() for name in by_node})
    order = [BEFORE, *PHASES, CHECKS, AFTER]
    lines = [f"| phase | seconds | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for phase in (name for name in order if name in found["phases"]):
        own = found["nodes"].get(phase, {})
        cells = [f"({own[name]:.1f})" if name in own else "" for name in names]
        lines.append(f"| {phase} | {found['phases'][phase]:.1f} | {' | '.join(cells)} |")
    lines.append(f"| all | {found['total']:.1f} | {' | '.join('' for _ in names)} |")
    lines += ["", "| role | seconds |", "| --- | --- |"]
    lines += [f"| {role} | {seconds:.1f} |" for role, seconds in found["roles"].items()]
    lines += ["", "| slowest tasks | role | seconds |", "| --- | --- | --- |"]
    lines += [f"| {task} | {role} | {seconds:.1f} |" for role, task, seconds in found["tasks"]]
    return "\n".join(lines)
