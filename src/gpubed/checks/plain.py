"""Links of nodes on which no ranks start: what job allreduce measures of the others.

Its own program does it, with plain TCP and without Horovod, between these nodes and one that
has ranks: what carries its rate to there is not looked at among those that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpubed import reading, registry
from gpubed.allocation import Node
from gpubed.checks.context import Context

_PROGRAM = "links"
_SECONDS = 1.0
_MEASURE = """
import json, pathlib, sys, links
folder, rank, count, name, address, seconds, declared, shaped = sys.argv[1:]
declared = float(declared)
rows = links.measure(
    pathlib.Path(folder, "peers"), int(rank), int(count), name, address, float(seconds), declared,
    lambda *_: None,
)
least, most = links.bounds(declared, bool(shaped))
print(json.dumps([{**row, "floor_bps": least, "ceiling_bps": most} for row in rows]))
"""
_WAIT_S, _PAIR_S = 120.0, 12.0


def measured(context: Context, declared: float) -> list[dict[str, Any]]:
    """Measure the links of nodes without ranks; each row is a direction of a pair, as the job's.

    Args:
        declared: The rate that the links should have, in bit/s.

    Raises:
        GpubedError: A node does not answer, or could not measure.
    """
    with_ranks = context.allocation.with_ranks
    idle = [node for node in context.allocation.nodes if node not in with_ranks]
    nodes = [*with_ranks[:1], *idle]
    if len(nodes) < 2:
        return []
    made = context.head.run("mktemp -d %s/runs/.links-XXXXXX", _shared(context))
    folder = made.stdout.strip()
    try:
        program = registry.job_folder("allreduce") / f"{_PROGRAM}.py"
        context.head.put(program, f"{folder}/{_PROGRAM}.py")
        return _together(context, folder, nodes, declared)
    finally:
        context.head.run("rm -r %s", folder, check=False)


def _together(
    context: Context, folder: str, nodes: Sequence[Node], declared: float
) -> list[dict[str, Any]]:
    shaped = registry.backend(context.plan.backend).shapes_links(context.plan.spec)

    def ask(place: int) -> list[dict[str, Any]]:
        node = nodes[place]
        words = (folder, place, len(nodes), node.name, node.experiment_address, _SECONDS)
        answer = context.sessions[node.name].run(
            "cd %s && python3 -c %s" + " %s" * 8,
            folder,
            _MEASURE,
            *words,
            declared,
            "1" if shaped else "",
            timeout=_WAIT_S + _PAIR_S * len(nodes) ** 2,
        )
        told = reading.reply(answer.stdout, f"what {node.name} measured")
        return told.json(list[dict[str, Any]])

    with ThreadPoolExecutor(len(nodes)) as pool:  # they wait for each other
        return [row for rows in pool.map(ask, range(len(nodes))) for row in rows]


def _shared(context: Context) -> str:
    return context.plan.spec.storage.shared.path
