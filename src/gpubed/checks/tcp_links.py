"""Measures the links of nodes without ranks; job allreduce measures those of nodes with ranks.

Runs the job's `links.py`, with plain TCP and without Horovod, among the nodes without ranks and one
node with ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict

from gpubed.checks.context import Context
from gpubed.core import parallel
from gpubed.jobs import jobfile
from gpubed.jobs.runs.record import Rate
from gpubed.nodes.allocation import Node
from gpubed.nodes.answers import Answer

_PROGRAM = "links"
_SECONDS = 1.0
_MEASURE = """
import json, pathlib, sys, links
peers, rank, count, name, address, seconds, declared = sys.argv[1:]
rows = links.measure(
    pathlib.Path(peers), int(rank), int(count), name, address, float(seconds), float(declared),
    lambda *_: None,
)
print(json.dumps(rows))
"""
_WAIT_S, _PAIR_S = 120.0, 12.0


class Row(BaseModel):
    """The measured rate between two nodes, in one direction, in bit/s."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    src: str
    dst: str
    measured_bps: Rate


def measured(context: Context, declared: float) -> list[dict[str, Any]]:
    """Measure the links of nodes without ranks.

    `declared` is the declared rate in bit/s. Returns two rows for each pair of nodes.
    """
    with_ranks = context.allocation.with_ranks
    idle = [node for node in context.allocation.nodes if node not in with_ranks]
    nodes = [*with_ranks[:1], *idle]
    if len(nodes) < 2:
        return []
    with _program(context) as folder:
        return _together(context, folder, "peers", nodes, declared)


def in_pairs(context: Context, nodes: Sequence[Node], rate: float) -> list[dict[str, Any]]:
    """Measure nodes in pairs, in parallel unless they share a host's CPUs; see `measured`.

    With an odd number of nodes, the first one is in two pairs.
    """
    pairs = [nodes[place : place + 2] for place in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs.append((nodes[0], nodes[-1]))
    last = len(pairs) - 1 if len(nodes) % 2 else len(pairs)
    at_once = 1 if context.allocation.one_host else parallel.AT_ONCE

    with _program(context) as folder:

        def ask(place: int) -> list[dict[str, Any]]:
            return _together(context, folder, f"pair-{place}", pairs[place], rate)

        found = parallel.each(ask, range(last), at_once)
        # The odd pair last: in parallel, two pairs would share the link of the first node.
        found += map(ask, range(last, len(pairs)))
    return [row for rows in found for row in rows]


@contextmanager
def _program(context: Context) -> Iterator[str]:
    made = context.head.run(
        "mktemp -d %s/runs/.links-XXXXXX", context.plan.spec.storage.shared.path
    )
    folder = made.stdout.strip()
    try:
        program = jobfile.folder("allreduce") / f"{_PROGRAM}.py"
        context.head.put(program, f"{folder}/{_PROGRAM}.py")
        yield folder
    finally:
        context.head.run("rm -r %s", folder, check=False)


def _together(
    context: Context, folder: str, peers: str, nodes: Sequence[Node], declared: float
) -> list[dict[str, Any]]:
    """Measure all pairs of some nodes, which find each other's addresses in the folder `peers`."""

    def ask(place: int) -> list[dict[str, Any]]:
        node = nodes[place]
        words = (peers, place, len(nodes), node.name, node.experiment_address, _SECONDS)
        answer = context.sessions[node.name].run(
            "cd %s && python3 -c %s" + " %s" * 7,
            folder,
            _MEASURE,
            *words,
            declared,
            timeout=_WAIT_S + _PAIR_S * len(nodes) ** 2,
        )
        rows = Answer(node.name, "links.py", answer.stdout).json(list[Row])
        return [row.model_dump() for row in rows]

    found = parallel.each(ask, range(len(nodes)), len(nodes))  # at once: they wait for each other
    return [row for rows in found for row in rows]
