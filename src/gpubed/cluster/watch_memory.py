"""Keeps a watch's memory (`watch.json`) and log (`logs/watch.log`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from gpubed.cluster import lease as leases
from gpubed.core import files, progress, reading, record, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Missing, Unreadable
from gpubed.core.text import printable
from gpubed.core.units import Moment
from gpubed.nodes.allocation import Allocation

DAY = timedelta(hours=24)
RELEASES = "watch"
"""The value of `removing` in a cluster's record while a watch releases the cluster."""
_LONGEST_WAIT = timedelta(minutes=30)
_FIRST_WAIT_S = 60.0
_LONGEST = 4000  # characters of an event


@dataclass(frozen=True)
class Event:
    """An action or finding of a watch; docs/how-to/watch.md lists the kinds."""

    time: datetime
    event: str
    why: str
    outcome: str = ""
    nodes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {**asdict(self), "time": stamp(self.time)}

    @property
    def line(self) -> str:
        """The event as a line, without control characters of nodes and testbeds."""
        outcome = f": {self.outcome}" if self.outcome else ""
        text = " ".join(printable(f"{self.why}{outcome}").split())
        return f"{stamp(self.time)} {self.event}: {reading.short(text, _LONGEST)}"


@dataclass(frozen=True)
class Warned:
    """A warning that a cluster is idle."""

    idle_s: float
    spell: str  # changes with each use of the nodes
    saved: bool = False  # whether results were saved since
    # The nodes being released: `down` removes the file that lists them first.
    granted: Allocation | None = None


class Memory(BaseModel):
    """What watches of a cluster remember between looks; times are timezone-aware."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a newer version may keep more

    version: Literal[1] = 1
    amiss: dict[str, Moment] = {}  # faults of the last look, with the time of their first look
    quarantined: dict[str, str] = {}  # nodes in quarantine when they last answered, with reasons
    repairs: tuple[Moment, ...] = ()  # when the repairs of the last day began
    failures: NonNegativeInt = 0  # failed repairs or releases since the last success
    failed: str = ""  # the last failure, in words
    wait_until: Moment | None = None  # when the next attempt may begin
    unfinished: bool = False  # whether the last repair did not finish
    left: str = ""  # the fault that was left to a person, while it stays the same
    warned: Warned | None = None  # the warning in effect while the cluster stays idle
    told: dict[str, str] = {}  # the last event of each matter, which is not repeated

    def until(self, now: datetime) -> Memory:
        """Return a copy without times after `now`, which a clock that was ahead has set."""
        wait = self.wait_until
        kept = {
            "amiss": {what: moment for what, moment in self.amiss.items() if moment <= now},
            "repairs": tuple(moment for moment in self.repairs if moment <= now),
            "wait_until": None if wait and wait > now + _LONGEST_WAIT else wait,
        }
        return self.model_copy(update=kept)

    def recent(self, now: datetime) -> tuple[datetime, ...]:
        """Return the repairs of the last 24 hours."""
        return tuple(moment for moment in self.repairs if now - moment < DAY)


class Journal:
    """Memory and log of a cluster's watch; calls `hear` with each logged event.

    Methods that write raise `OSError` if the disk is full.
    """

    def __init__(self, paths: ClusterPaths, hear: Callable[[Event], None]) -> None:
        self.paths, self.hear = paths, hear
        self.memory = load(paths)

    @property
    def releases(self) -> bool:
        """Whether a watch has begun to release the cluster; a person's `down` does not count."""
        try:
            return record.read(self.paths).removing == RELEASES
        except Unreadable:
            return False

    @property
    def is_gone(self) -> bool:
        """Whether there is neither a cluster nor an unfinished release."""
        return not (self.paths.allocation.exists() or self.paths.has_stack or self.releases)

    @property
    def is_going(self) -> bool:
        """Whether the cluster's folder is or will be removed, so that nothing is written there."""
        holder = runlock.holder(self.paths.state)
        # On a full disk, the lock's verb may be missing.
        return self.is_gone or (holder is not None and holder.verb in ("down", ""))

    @property
    def waits(self) -> bool:
        """Whether the next attempt after a failure is not due yet."""
        return self.memory.wait_until is not None and leases.now() < self.memory.wait_until

    def remember(self, **changes: Any) -> None:
        """Change the memory and write it."""
        memory = self.memory.model_copy(update=changes)
        if memory != self.memory:
            self.memory = memory
            if not self.is_going:
                self.paths.state.mkdir(parents=True, exist_ok=True)
                files.write(self.paths.watch, memory.model_dump_json(indent=1).encode())

    def tell(
        self,
        event: str,
        why: str,
        outcome: str = "",
        nodes: Sequence[str] = (),
        *,
        details: str = "",
    ) -> None:
        """Log an event, with `details` below it, and pass it to `hear`."""
        entry = Event(leases.now(), event, why, outcome, tuple(nodes))
        try:
            if not self.is_going:
                log(self.paths, entry, details)
        finally:
            self.hear(entry)

    def tell_once(
        self, matter: str, event: str, why: str, outcome: str = "", nodes: Sequence[str] = ()
    ) -> None:
        """Report an event, unless it has a matter and repeats that matter's last event."""
        text = f"{event}: {why}: {outcome}"
        if not matter or self.memory.told.get(matter) != text:
            if matter:
                self.remember(told={**self.memory.told, matter: text})
            self.tell(event, why, outcome, nodes)

    def settle(self, matter: str, well: str = "") -> None:
        """Forget a matter, and report `well` if the matter had an event."""
        if matter in self.memory.told:
            self.remember(told={k: v for k, v in self.memory.told.items() if k != matter})
            if well:
                self.tell("well", well)

    def report(self, matter: str, event: str, why: str, outcome: str = "", well: str = "") -> None:
        """Report a matter once if `why` is not empty, else settle it."""
        if why:
            self.tell_once(matter, event, why, outcome)
        else:
            self.settle(matter, well)

    def leave(self, why: str, hint: str | None) -> None:
        """Report once that a fault is left to a person."""
        self.tell_once("cluster", "person", why, hint or f"gpubed status {self.paths.name}")

    def failed(self, error: GpubedError) -> str:
        """Count a failed repair or release; return the outcome to report."""
        failures = self.memory.failures + 1
        wait_s = backed_off(failures)
        until = leases.now() + timedelta(seconds=wait_s)
        self.remember(amiss={}, failures=failures, wait_until=until)
        return f"failed: {in_words(error)}; not again for {wait_s / 60:g} min"


def load(paths: ClusterPaths) -> Memory:
    """Return the memory; an unreadable file counts as empty, and this is reported."""
    try:
        return reading.file(paths.watch).json(Memory)
    except Missing:
        return Memory()
    except Unreadable as error:
        progress.note(f"{error.message}: the watch starts with an empty memory")
        return Memory()


def log(paths: ClusterPaths, event: Event, details: str = "") -> None:
    """Append an event to the log."""
    paths.logs.mkdir(parents=True, exist_ok=True)
    with (paths.logs / "watch.log").open("a", encoding="utf-8") as file:
        file.write(f"{event.line}\n")
        file.writelines(f"  {line}\n" for line in printable(details).splitlines())


def stamp(moment: datetime) -> str:
    """Format a time in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def backed_off(failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row."""
    return min(_FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), _LONGEST_WAIT.total_seconds())


def in_words(error: Exception) -> str:
    """Return an error's message, with its hint."""
    if isinstance(error, GpubedError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return f"{type(error).__name__}: {error}"
