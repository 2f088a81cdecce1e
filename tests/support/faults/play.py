"""Plays one fault: break it, look, and follow the hints until the cluster is whole."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import CompletedProcess

from gpubed.core.paths import Project
from gpubed.nodes import allocation
from support.cluster import BIN, Cluster

FILE, RESULT = "/shared/result", "42"
# The words of a hint that are a command: up to what a sentence goes on with.
COMMAND = re.compile(
    r"(?:cp|mv) \S+ \S+|gpubed [a-z]+ [\w-]+(?: --?[\w-]+| node-\d| [0-9a-f]{8}-[0-9a-f-]{27})*"
)
# Identities, addresses, fingerprints and process ids.
OWN = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+\.\d+\.\d+\.\d+\b|SHA256:\S+"
    r"|(?<=lab-)[0-9a-f]{8}(?=-)|(?<=pid )\d+|\d{4}-\d\d-\d\d [\d:]+"
)
LONGEST = 5


@dataclass(frozen=True)
class Fault:
    """A way to break a cluster."""

    name: str
    title: str
    damage: Callable[[Play], Iterator[None]]
    repaired_by: str = ""


@dataclass
class Played:
    """What came of a fault: each command with its exit code, its seconds and its last words."""

    fault: Fault
    shown: Mapping[str, str]
    status: CompletedProcess[str]
    steps: list[tuple[str, CompletedProcess[str], float]] = field(default_factory=list)
    whole: bool = False
    kept: bool = False

    @property
    def right(self) -> bool:
        """Whether hints led to a whole cluster, with all its data."""
        return self.whole and self.kept

    @property
    def row(self) -> str:
        """The row of the page, with what differs from run to run in general words."""
        _, first, seconds = self.steps[0]
        ran = [f"`{command}`" for command, _, _ in self.steps]
        if self.fault.repaired_by and all(done.returncode for _, done, _ in self.steps):
            ran = [f"`{self.fault.repaired_by}`, the other run"]  # what was refused did nothing
        by = ", then ".join(ran) if self.whole else f"**not repaired** by {', '.join(ran)}"
        looked = f"{said(self.status)} ({self.status.returncode})"
        did = f"{said(first)} ({first.returncode}, {seconds:.0f} s)"
        kept = "kept" if self.kept else "**lost**"
        row = f"| {self.fault.title} | {looked} | {did} | {by} | {kept} |"
        for theirs, general in self.shown.items():
            row = row.replace(theirs, general)
        return OWN.sub("…", row)


class Play:
    """A cluster that is broken again and again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.paths = Project(cluster.root).cluster(cluster.name)
        self._is_whole = False

    def play(self, fault: Fault) -> Played:
        """Break a whole cluster, look at it, and do what is said."""
        self._make_whole()
        with contextmanager(fault.damage)(self):
            shown = {f"{self.cluster.root}/": "", self.cluster.name: "lab"}
            played = Played(fault, shown, self.gpubed("status", self.cluster.name))
            self._step(played, f"gpubed up {self.cluster.name}")
        while (hint := self._way_out(played)) and len(played.steps) < LONGEST:
            self._step(played, hint)
        played.whole = not self.gpubed("status", self.cluster.name).returncode
        played.kept = self._read() == RESULT
        self._is_whole = played.right
        return played

    def down(self) -> None:
        """Remove the cluster, and whatever else has its name."""
        found = json.loads(self.gpubed("audit", self.cluster.name, "--json").stdout or "{}")
        for uuid in {other["uuid"] for other in found.get("others", ())}:
            self.gpubed("audit", self.cluster.name, "--remove", "--uuid", uuid, "--data", "-y")
        self.gpubed("down", self.cluster.name, "-y")

    def gpubed(self, *words: str) -> CompletedProcess[str]:
        """Run a verb; nobody is there to answer questions."""
        return subprocess.run(
            [str(BIN / "gpubed"), *words],
            env=self.cluster.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def docker(self, *words: str) -> str:
        granted = allocation.load(self.paths.allocation)
        ids = {node.name: node.id for node in granted.nodes}
        command = ["docker", *(ids.get(word, word) for word in words)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def network(self, purpose: str) -> str:
        granted = allocation.load(self.paths.allocation)
        return f"gpubed-{self.cluster.name}-{granted.uuid[:8]}-{purpose}"

    def _make_whole(self) -> None:
        if not self._is_whole and self.gpubed("up", self.cluster.name, "-y").returncode:
            self.down()
            self.cluster.call("up", "-y")
        self.cluster.node("node-0", f"sudo tee {FILE}", RESULT)

    def _read(self) -> str:
        done = subprocess.run(
            ["ssh", "-F", str(self.paths.ssh_config), "node-1", f"cat {FILE}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def _step(self, played: Played, command: str) -> None:
        began = time.monotonic()
        program, *words = shlex.split(command)
        if program == "gpubed":
            done = self.gpubed(*words)
        else:
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        played.steps.append((command, done, time.monotonic() - began))

    def _way_out(self, played: Played) -> str | None:
        command, last, _ = played.steps[-1]
        up = f"gpubed up {self.cluster.name}"
        if last.returncode == 0 and command.startswith(up):
            return None
        tried = {command for command, _, _ in played.steps}
        named = [found for line in _told(last) for found in COMMAND.findall(line)]
        fresh = [found for found in named if found not in tried]
        return next(iter(fresh), up if last.returncode == 0 else None)


def said(done: CompletedProcess[str]) -> str:
    """Return what a person is told first about what is wrong, as a cell of a table."""
    wrong = [line for line in _told(done) if line.startswith(("error:", "✗"))]
    steps = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    notes = [line for line in steps if " is " in line]
    first = next(iter([*wrong, *notes, *steps]), "nothing")
    return first.removeprefix("error:").strip(" ✗").replace("|", "\\|")


def _told(done: CompletedProcess[str]) -> list[str]:
    return [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
