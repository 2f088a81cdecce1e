"""Asks nodes who uses them, for what, and how long they have been idle.

Each node records its use itself (`gpubed-use` of role health). A node that cannot be asked counts
as used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gpubed.configuration import roles
from gpubed.core import parallel, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH

_WORTH_A_ROW_S = 60.0  # of processors
_PROGRAM = "sudo -n gpubed-use"
_SHOWN = 200  # characters of an invalid answer in a message
_ROWS = 1000  # per node
_MOST_S = 1e12  # a bound that also excludes infinity
_Seconds = Annotated[float, Field(ge=0, le=_MOST_S)]


class Last(BaseModel):
    """The last use of a node: the user (empty if unknown) and the kind of use."""

    model_config = ConfigDict(frozen=True)

    who: reading.Name
    what: reading.Line


class Row(BaseModel):
    """A user's use in the last 24 hours, in seconds; `job` is empty outside of jobs."""

    model_config = ConfigDict(frozen=True)

    user: reading.Name
    job: reading.Name
    cpu_s: _Seconds  # CPU time
    gpu_s: _Seconds  # time in which GPUs computed
    held_s: _Seconds  # time in which GPUs had a program of the user


class NodeUse(BaseModel):
    """A node's answer; `mute` lists what it could not find out, in words."""

    model_config = ConfigDict(frozen=True)

    idle_s: _Seconds
    spell: reading.Name
    last: Last | None
    use: tuple[Row, ...]
    gpus: int = Field(ge=0, le=1024)
    mute: tuple[reading.Line, ...]


@dataclass(frozen=True)
class Use:
    """The use of a cluster."""

    idle_s: float  # seconds since its last use; 0 if a node could not be asked
    why: str  # the last use, or the nodes that could not be asked, in words
    spell: str  # an identifier that changes with each use; a line for each node that answers
    rows: tuple[Row, ...] = ()  # use in the last 24 hours, by user and job
    gpus: int = 0  # number of GPUs

    def document(self) -> dict[str, Any]:
        """Return the use as a JSON document, without `spell`."""
        rows = [row.model_dump() for row in self.rows]
        return {"idle_s": round(self.idle_s), "why": self.why, "gpus": self.gpus, "rows": rows}


def look(cluster: Cluster, *, who_answers: bool = False) -> Use | None:
    """Ask all nodes at once; return None if nodes do not record their use, as bare ones.

    `who_answers` ignores nodes that do not answer; None if none does.
    """
    plan, nodes = cluster.plan, cluster.allocation.nodes
    if not nodes or not plan.spec.configure or "health" not in roles.active(plan):
        return None
    found = parallel.each(partial(_look, cluster.paths), nodes)
    said = {node.name: one for node, one in zip(nodes, found, strict=True)}
    if who_answers:
        said = {name: one for name, one in said.items() if isinstance(one, NodeUse)}
    return put_together(said) if said else None


def shown(rows: Iterable[Row]) -> list[Row]:
    """Return the rows for a table, without mere logins, sorted by GPU and CPU time."""
    worth = [row for row in rows if row.held_s or row.cpu_s >= _WORTH_A_ROW_S]
    return sorted(worth, key=lambda row: (-row.held_s, -row.cpu_s))


def used(use: Use, why: str) -> Use:
    """Return `use` as not idle because of a use that nodes cannot see (`why`)."""
    return Use(0.0, why, use.spell, use.rows, use.gpus)


def put_together(said: dict[str, NodeUse | str]) -> Use:
    """Combine the answers of all nodes; a text is why a node could not be asked."""
    told = {name: one for name, one in said.items() if isinstance(one, NodeUse)}
    silent = [f"{name}: {why}" for name, why in said.items() if isinstance(why, str)]
    rows = _added(row for one in told.values() for row in one.use[:_ROWS])
    gpus = sum(one.gpus for one in told.values())
    spell = "\n".join(f"{name}={one.spell}" for name, one in sorted(told.items()))
    if silent:
        return Use(0.0, f"not all could be asked: {'; '.join(silent)}", spell, rows, gpus)
    # The node with the shortest idle time.
    name, latest = min(told.items(), key=lambda pair: pair[1].idle_s)
    last = latest.last
    why = f"{last.who}: " if last and last.who else ""
    why = f"{why}{last.what} on {name}" if last else f"{name} was never used"
    return Use(latest.idle_s, why, spell, rows, gpus)


def _added(rows: Iterable[Row]) -> tuple[Row, ...]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        figures = zip(sums[row.user, row.job], (row.cpu_s, row.gpu_s, row.held_s), strict=True)
        # Sums of untrusted values must stay within the bound of `Row`.
        sums[row.user, row.job] = [min(a + b, _MOST_S) for a, b in figures]
    return tuple(
        Row(user=user, job=job, cpu_s=cpu, gpu_s=gpu, held_s=held)
        for (user, job), (cpu, gpu, held) in sorted(sums.items())
    )


def _look(paths: ClusterPaths, node: Node) -> NodeUse | str:
    try:
        with SSH(node, paths) as session:
            answer = session.run(f"{_PROGRAM} status", check=False)
    except GpubedError as error:
        return error.headline
    try:
        return reading.reply(answer.stdout, "what it is used for").json(NodeUse)
    except Unreadable:
        said = reading.tail(answer.stderr, 1, _SHOWN) or "no word"
        mute = f"it cannot tell what it is used for: {said}"
        return f"{mute}; repair: gpubed configure {paths.name} --tags health"


@contextmanager
def own(sessions: Sequence[SSH]) -> Iterator[None]:
    """Have nodes ignore gpubed's own work in these sessions, such as measuring or collecting.

    The exemption ends with the session. A node that cannot be told counts the work as use.
    """
    told: set[SSH] = set()

    def tell(verb: str, session: SSH) -> None:
        with suppress(GpubedError):
            session.run(f"{_PROGRAM} {verb}", check=False)
            told.add(session)

    parallel.each(partial(tell, "own"), sessions)
    try:
        yield
    finally:
        parallel.each(partial(tell, "disown"), [one for one in sessions if one in told])


def warn(paths: ClusterPaths, nodes: Sequence[Node], text: str, *, back: bool = False) -> None:
    """Write a warning on the terminals of all nodes and in their monitoring, or take it `back`."""

    def tell(node: Node) -> None:
        with SSH(node, paths) as session:
            session.run(f"{_PROGRAM} {'unwarn' if back else 'warn'} %s", text)

    parallel.each(tell, nodes)
