"""What nodes are used for, by whom, and since when by nobody.

The node itself looks and remembers (`gpubed-use` of role health), also when no controller is
there; this asks all of them and puts together what they say. What cannot be asked counts as used.
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
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

_WORTH_A_ROW_S = 60.0  # of processors
_PROGRAM = "sudo -n gpubed-use"
_SHOWN = 200  # characters of what a node says instead of an answer
_ROWS = 1000  # of a node
_MOST_S = 1e12  # more than anybody used; infinity is as little as "nan" a time
_Seconds = Annotated[float, Field(ge=0, le=_MOST_S)]


class Last(BaseModel):
    """The last use of a node: by whom, where that is known, and what it was."""

    model_config = ConfigDict(frozen=True)

    who: reading.Name
    what: reading.Line


class Row(BaseModel):
    """What somebody used in the last 24 hours, in seconds; a job is empty where it was none.

    Attributes:
        cpu_s: Of processors.
        gpu_s: Of GPUs that computed.
        held_s: Of GPUs on which a program of theirs was.
    """

    model_config = ConfigDict(frozen=True)

    user: reading.Name
    job: reading.Name
    cpu_s: _Seconds
    gpu_s: _Seconds
    held_s: _Seconds


class NodeUse(BaseModel):
    """What a node says; `mute` is what it could not ask, in words."""

    model_config = ConfigDict(frozen=True)

    idle_s: _Seconds
    spell: reading.Name
    last: Last | None
    use: tuple[Row, ...]
    gpus: int = Field(ge=0, le=1024)
    mute: tuple[reading.Line, ...]


@dataclass(frozen=True)
class Use:
    """What a cluster is used for.

    Attributes:
        idle_s: Seconds since its last use; 0 where a node could not be asked.
        why: That last use, or who could not be asked, in words.
        spell: Another one after each use; a line for each node that tells.
        rows: Who used what in the last 24 hours.
        gpus: GPUs that are there.
    """

    idle_s: float
    why: str
    spell: str
    rows: tuple[Row, ...] = ()
    gpus: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rows = [row.model_dump() for row in self.rows]
        return {"idle_s": round(self.idle_s), "why": self.why, "gpus": self.gpus, "rows": rows}


def look(cluster: Cluster, *, who_answers: bool = False) -> Use | None:
    """Ask all nodes at once; None where nodes do not tell, as bare ones.

    Args:
        who_answers: Whether only those count that answer; None where none of them does.
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
    """Return what is worth a row in a table: who held GPUs first, and no mere login."""
    worth = [row for row in rows if row.held_s or row.cpu_s >= _WORTH_A_ROW_S]
    return sorted(worth, key=lambda row: (-row.held_s, -row.cpu_s))


def used(use: Use, why: str) -> Use:
    """Return the same of a cluster that is used by what its nodes cannot know of."""
    return Use(0.0, why, use.spell, use.rows, use.gpus)


def put_together(said: dict[str, NodeUse | str]) -> Use:
    """Return what all nodes say together; who could not be asked says why, in words."""
    told = {name: one for name, one in said.items() if isinstance(one, NodeUse)}
    silent = [f"{name}: {why}" for name, why in said.items() if isinstance(why, str)]
    rows = _added(row for one in told.values() for row in one.use[:_ROWS])
    gpus = sum(one.gpus for one in told.values())
    spell = "\n".join(f"{name}={one.spell}" for name, one in sorted(told.items()))
    if silent:
        return Use(0.0, f"not all could be asked: {'; '.join(silent)}", spell, rows, gpus)
    # The first of those that are idle for the shortest time.
    name, latest = min(told.items(), key=lambda pair: pair[1].idle_s)
    return Use(latest.idle_s, _words(name, latest), spell, rows, gpus)


def _words(name: str, node: NodeUse) -> str:
    if node.last is None:
        return f"{name} was never used"
    of = f"{node.last.who}: " if node.last.who else ""
    return f"{of}{node.last.what} on {name}"


def _added(rows: Iterable[Row]) -> tuple[Row, ...]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        figures = zip(sums[row.user, row.job], (row.cpu_s, row.gpu_s, row.held_s), strict=True)
        # A node may say anything: what two of its rows add up to ends nobody who asks.
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
    """Let nodes take for no use what gpubed itself does in sessions, as to measure or to collect.

    It ends with a session, however that ends. A node that cannot be told counts it as a use.
    """
    told = _tell_own(sessions, "own")
    try:
        yield
    finally:
        _tell_own(told, "disown")


def _tell_own(sessions: Sequence[SSH], verb: str) -> list[SSH]:
    """Tell nodes, and return the sessions with those that answer."""

    def tell(session: SSH) -> bool:
        with suppress(GpubedError):
            session.run(f"{_PROGRAM} {verb}", check=False)
            return True
        return False

    answers = parallel.each(tell, sessions)
    return [one for one, answer in zip(sessions, answers, strict=True) if answer]


def warn(paths: ClusterPaths, nodes: Sequence[Node], text: str, *, back: bool = False) -> None:
    """Write on the terminals of all nodes, and let their monitoring warn.

    Args:
        back: Whether it takes a warning back.

    Raises:
        GpubedError: Not all nodes could be told.
    """

    def tell(node: Node) -> None:
        with SSH(node, paths) as session:
            session.run(f"{_PROGRAM} {'unwarn' if back else 'warn'} %s", text)

    parallel.each(tell, nodes)
