"""How `check`, `plan` and `configure` grow with a cluster: measured, kept, shown as a table.

The nodes are hosts of one's own that nobody has: what a plan of a new cluster asks of that
testbed is nothing. What the testbed would have granted is made up, so that there is an
inventory to write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpubed.backends.component import allocation
from gpubed.core import paths
from gpubed.core.paths import Project
from gpubed.testbeds.specification import load_plan
from support import kept

SIZES = (10, 100, 1000)
_UNMEASURED = 3  # Python compiles what it has not run before, once
VERBS = ("check", "plan", "configure")
LIMITS = "5 s of CPU and 500 MB for 1,000 nodes"
KEPT = Path(__file__).parents[1] / "bench" / "growth.json"
HEAD = """## Growth

CPU time, and the memory of the largest process, of each verb and all that it starts, for clusters
of hosts of one's own; `configure --files-only` writes the inventory. Part of `make bench`. In
brackets: how many times what {base} nodes took in the same run. Wanted are {limits}.

"""


@dataclass(frozen=True)
class Cost:
    """What a verb took."""

    cpu_s: float
    memory: float


Costs = dict[int, dict[str, Cost]]


def measure(root: Path) -> Costs:
    """Let each verb do its work on a cluster of each size, in a project of its own."""
    found: Costs = {}
    for size in (_UNMEASURED, *SIZES):
        _declare(root, size)
        found[size] = {verb: _cost(root, verb, _name(size)) for verb in ("check", "plan")}
        _grant(root, size)
        found[size]["configure"] = _cost(root, "configure", _name(size), "--files-only")
    del found[_UNMEASURED]
    return found


def _name(size: int) -> str:
    return f"growth-{size}"


def _declare(root: Path, size: int) -> None:
    hosts = [
        {
            "address": f"198.18.{i // 250}.{1 + i % 250}",
            "experiment_address": f"198.19.{i // 250}.{1 + i % 250}",
        }
        for i in range(size)
    ]
    backend = {"type": "static", "user": "alice", "key": "key", "hosts": {"node": hosts}}
    document = {
        "version": 1,
        "backend": backend,
        "nodes": [{"name": "node", "count": size, "image": "debian-12"}],
        "networks": {"experiment": {"subnet": "198.19.0.0/16", "rate": "10 Gbit/s"}},
    }
    path = Project(root).cluster(_name(size)).spec
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(document))


def _grant(root: Path, size: int) -> None:
    cluster = Project(root).cluster(_name(size))
    wanted = load_plan(cluster.spec)
    results = [
        {
            "id": f"host-{node.name}",
            "control_address": str(node.control_address),
            "experiment_address": str(node.experiment_address),
            "host_keys": [f"ssh-ed25519 {node.index:068d}"],
        }
        for node in wanted.nodes
    ]
    cluster.allocation.parent.mkdir(parents=True, exist_ok=True)
    cluster.allocation.write_text(json.dumps(allocation(wanted, "no-uuid", results)))


# Of a process of its own: what is counted of children is counted of all of them since its start.
_MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1000]))
sys.exit(done.stderr[-2000:] if done.returncode else 0)
"""


def _cost(root: Path, verb: str, *words: str) -> Cost:
    command = [str(Path(sys.executable).with_name("gpubed")), verb, *words]
    command += ["--engine", "embedded"] if verb == "plan" else []
    environment = {
        **os.environ,
        "GPUBED_ROOT": str(root),
        "PYTHONPATH": str(paths.assets() / "src"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Cost(*json.loads(done.stdout))


def keep(measured: Costs, load: str) -> None:
    """Write the figures of a whole run down."""
    costs = {
        str(size): {verb: [round(c.cpu_s, 2), round(c.memory)] for verb, c in of.items()}
        for size, of in measured.items()
    }
    kept.measured(KEPT, load=load, costs=costs)


def section() -> str:
    """Return what is kept, as a section of a page."""

    def body(found: dict[str, Any]) -> str:
        costs = {
            int(size): {verb: Cost(*cost) for verb, cost in of.items()}
            for size, of in found["costs"].items()
        }
        return f".\n\n{table(costs)}"

    return kept.section(KEPT, HEAD.format(base=SIZES[0], limits=LIMITS), body)


def table(measured: Costs) -> str:
    """Return a row per size and a column per verb, with ratios to the smallest."""
    lines = [f"| nodes | {' | '.join(VERBS)} | all | memory |", "| --- " * 6 + "|"]
    base = measured[min(measured)]
    for size, of in sorted(measured.items()):
        cells = [_cell(of[verb].cpu_s, base[verb].cpu_s) for verb in VERBS]
        cells.append(_cell(total(of), total(base)))
        memory = max(cost.memory for cost in of.values())
        lines.append(f"| {size:,} | {' | '.join(cells)} | {memory:.0f} MB |")
    return "\n".join(lines)


def total(of: dict[str, Cost]) -> float:
    """Return the CPU time of all verbs together, in seconds."""
    return sum(cost.cpu_s for cost in of.values())


def _cell(seconds: float, base: float) -> str:
    return f"{seconds:.1f} s ({seconds / base:.1f})"
