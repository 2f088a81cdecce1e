"""Reads the use of nodes: users, kinds of use, and how long nodes have been idle.

Each node records its use (`gpubed-use` of role health). A node that does not answer counts as used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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

_WORTH_A_ROW_S = 60.0  # least CPU time of a row in tables
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
    """A user's use of a node in the last 24 hours, in seconds; `job` is empty outside of jobs."""

    model_config = ConfigDict(frozen=True)

    user: reading.Name
    job: reading.Name
    cpu_s: _Seconds  # CPU time
    gpu_s: _Seconds  # time in which GPUs computed
    held_s: _Seconds  # time in which GPUs had a program of the user


class NodeUse(BaseModel):
    """A node's answer; `mute` has a sentence for each measurement that failed."""

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

    idle_s: float  # seconds since its last use; 0 if a node did not answer
    why: str  # the last use, or the nodes that did not answer, as a sentence
    spell: str  # identifies the present idle time; has a line for each node that answers
    rows: tuple[Row, ...] = ()  # use in the last 24 hours, by user and job
    gpus: int = 0  # number of GPUs

    def document(self) -> dict[str, Any]:
        """Return the use as a JSON document, without `spell`."""
        rows = [row.model_dump() for row in self.rows]
        return {"idle_s": round(self.idle_s), "why": self.why, "gpus": self.gpus, "rows": rows}


def look(cluster: Cluster, *, ignore_silent: bool = False) -> Use | None:
    """Return the use of a cluster; None if its nodes do not record their use.

    With `ignore_silent`, nodes that do not answer are left out; None if none answers.
    """
    plan, nodes = cluster.plan, cluster.allocation.nodes
    if not nodes or not plan.spec.configure or "health" not in roles.active(plan):
        return None
    found = parallel.each(partial(_look, cluster.paths), nodes)
    answers = {node.name: answer for node, answer in zip(nodes, found, strict=True)}
    if ignore_silent:
        answers = {name: one for name, one in answers.items() if isinstance(one, NodeUse)}
    return put_together(answers) if answers else None


def shown(rows: Iterable[Row]) -> list[Row]:
    """Return the rows for a table, without short logins, sorted by GPU and CPU time."""
    worth = [row for row in rows if row.held_s or row.cpu_s >= _WORTH_A_ROW_S]
    return sorted(worth, key=lambda row: (-row.held_s, -row.cpu_s))


def used(use: Use, why: str) -> Use:
    """Return `use` as not idle because of a use that nodes do not record (`why`)."""
    return replace(use, idle_s=0.0, why=why)


def put_together(answers: dict[str, NodeUse | str]) -> Use:
    """Combine the answers of nodes, by name; a text is the error of a node without an answer."""
    uses = {name: use for name, use in answers.items() if isinstance(use, NodeUse)}
    silent = [f"{name}: {why}" for name, why in answers.items() if isinstance(why, str)]
    rows = _sums(row for use in uses.values() for row in use.use[:_ROWS])
    gpus = sum(use.gpus for use in uses.values())
    spell = "\n".join(f"{name}={use.spell}" for name, use in sorted(uses.items()))
    if silent:
        return Use(0.0, f"nodes did not answer: {'; '.join(silent)}", spell, rows, gpus)
    name, latest = min(uses.items(), key=lambda pair: pair[1].idle_s)
    last = latest.last
    why = f"{last.who}: " if last and last.who else ""
    why = f"{why}{last.what} on {name}" if last else f"{name} was never used"
    return Use(latest.idle_s, why, spell, rows, gpus)


def _sums(rows: Iterable[Row]) -> tuple[Row, ...]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        figures = zip(sums[row.user, row.job], (row.cpu_s, row.gpu_s, row.held_s), strict=True)
        # Nodes are not trusted: sums must stay within the bound of `Row`.
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
        return reading.reply(answer.stdout, "its use").json(NodeUse)
    except Unreadable:
        why = f"gpubed-use fails: {reading.tail(answer.stderr, 1, _SHOWN) or 'no output'}"
        return f"{why}; repair: gpubed configure {paths.name} --tags health"


@contextmanager
def own(sessions: Sequence[SSH]) -> Iterator[None]:
    """Make nodes ignore gpubed's own work in these sessions, such as measurements.

    The exemption also ends with a session. A node that does not answer counts the work as use.
    """
    exempt: set[SSH] = set()

    def tell(verb: str, session: SSH) -> None:
        with suppress(GpubedError):
            session.run(f"{_PROGRAM} {verb}", check=False)
            exempt.add(session)

    parallel.each(partial(tell, "own"), sessions)
    try:
        yield
    finally:
        parallel.each(partial(tell, "disown"), [one for one in sessions if one in exempt])


def warn(paths: ClusterPaths, nodes: Sequence[Node], text: str, *, back: bool = False) -> None:
    """Show a warning on the terminals of all nodes and in their monitoring, or take it `back`."""

    def tell(node: Node) -> None:
        with SSH(node, paths) as session:
            session.run(f"{_PROGRAM} {'unwarn' if back else 'warn'} %s", text)

    parallel.each(tell, nodes)
