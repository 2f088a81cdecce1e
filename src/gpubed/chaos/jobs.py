"""Jobs whose ranks die, and checkpoints that are damaged."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from gpubed.chaos.scenario import Ground, Held, Scenario, Status, Unfit
from gpubed.jobs import checkpoint_files, leftovers
from gpubed.jobs.runs import record
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.testbeds.breaker import Harm

_OVER_S = 180.0
_LOOK_EVERY_S = 2.0
_LONGEST = 255  # characters of a file's name, which a node may not go by
_NEWEST = (
    f"sudo -n find %s -maxdepth 1 -type f {checkpoint_files.FINISHED} -printf '%%T@ %%f\\n'"
    " | sort -n | tail -n 1 | cut -d ' ' -f 2-"
)
_WHOLE = "cd %s && sudo -n sha256sum --status --check %s"
# A copy is kept beside it, the only good one: it has its name once it is whole. What one that was
# killed has left is put back first.
_DAMAGE = """
{mend}
set -e
cd {folder}
cp --preserve=all {file} .copying-for-chaos
mv .copying-for-chaos {copy}
dd if=/dev/urandom of={file} bs=1 count=64 seek=$(($(stat -c %s {file}) / 2)) conv=notrunc
"""
# What a training has removed meanwhile stays so, as does what it wrote anew. One that it has set
# aside as damaged (`.damaged`, and a number) comes back with its SHA-256: the copy is the only good
# one. The damaged one stays where it was set aside.
_MEND = (
    'if cd {folder} 2>/dev/null; then for copy in .chaos-*; do file="${{copy#.chaos-}}"; '
    'if [ ! -e "$copy" ]; then continue; fi; set -- "$file".damaged*; '
    'if [ -e "$file" ] && ! sha256sum --status --check "./$file.sha256" 2>/dev/null; '
    'then mv -f "$copy" "./$file"; elif [ -e "$file" ] || [ ! -e "$1" ]; then rm "$copy"; '
    'else sum="$(sha256sum < "$copy" | cut -c -64)"; for aside in "$file".damaged*.sha256; do '
    'if [ ! -e "$file.sha256" ] && grep -qs "$sum" "./$aside"; '
    'then cp --preserve=all "./$aside" "./$file.sha256"; fi; done; mv -n "$copy" "./$file"; '
    "fi; done; fi"
)


class KillRank(Scenario):
    """A rank that dies, for want of memory for one."""

    name = "kill-rank"
    does = "the ranks of a run on it are killed"
    holds = (f"the run is over within {_OVER_S:g} s, or goes on without them (--elastic)",)
    seen_as = frozenset({"ready"})
    by_itself = True

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the nodes with ranks, but for the head, where a run's launcher is, too."""
        found = ground.cluster.allocation.nodes[1:] if _running(ground) else ()
        if not (busy := [node for node in found if _ranks(ground, node)]):
            raise Unfit("no run has ranks on nodes other than the head")
        return busy

    def harm(self) -> Harm:
        """Kill what belongs to the run there; nobody can take that back."""
        ranks = _ranks(self.ground, self.node)
        if not ranks:
            raise Unfit(f"no run has ranks on {self.node.name} any more")
        self._run = self.draw.choice(sorted(ranks))
        # One that has ended by itself is no fault.
        kill = f"kill -KILL {' '.join(ranks[self._run])} || true"
        done = self.ground.breaker.scripted(self.node, kill, "true")
        # Nobody can bring a rank back; what became of its run is all that there is to know.
        return Harm(done.do, None, f"gpubed runs {self.ground.cluster.name} show {self._run}")

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that the run does not wait for them for ever."""
        yield from super().meanwhile(status)
        until = time.monotonic() + _OVER_S
        while _is_running(self.ground, self._run) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        found = record.find(self.ground.cluster.paths, self._run)
        why = f"it is {found.state}: {'; '.join(found.failures) or 'no more is known'}"
        yield Held(f"run {self._run} is over", found.state != "running", why)


class CorruptCheckpoint(Scenario):
    """A checkpoint of which a disk has lost a part."""

    name = "corrupt-checkpoint"
    does = "64 bytes of the newest checkpoint are others; the file comes back as it was"
    holds = (
        "the SHA-256 beside the checkpoint tells that it is damaged",
        "afterwards the SHA-256 is right again, where the checkpoint is still there",
    )
    seen_as = frozenset({"ready"})
    by_itself = True
    damages_checkpoints = True

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the head: all nodes see the same folder."""
        name = ground.checkpoint
        if not name:
            raise Unfit("no checkpoints were named: --checkpoint FOLDER, below checkpoints/")
        if PurePosixPath(name).name != name or name == "..":
            raise Unfit(f"{name!r} is no folder's name below checkpoints/")
        return [ground.cluster.allocation.head]

    def title(self) -> str:
        """Name the file, too."""
        return (
            f"{self.name}: 64 bytes of {self._folder}/{self._file} are others until the end; "
            "nothing else there is touched"
        )

    @property
    def _folder(self) -> str:
        shared = self.ground.cluster.plan.spec.storage.shared.path
        return f"{shared}/checkpoints/{self.ground.checkpoint}"

    @cached_property
    def _file(self) -> str:
        with SSH(self.ground.cluster.allocation.head, self.ground.cluster.paths) as ssh:
            name = ssh.run(_NEWEST, self._folder, check=False).stdout.rstrip("\n")
        if not name or len(name) > _LONGEST or PurePosixPath(name).name != name:
            raise Unfit(f"there is no checkpoint in {self._folder}")
        return name

    def harm(self) -> Harm:
        """Write over a part of the file, of which a copy is kept."""
        words = {"folder": self._folder, "file": f"./{self._file}", "copy": f".chaos-{self._file}"}
        quoted = {key: shlex.quote(word) for key, word in words.items()}
        mend = _MEND.format(**quoted)
        damage = _DAMAGE.format(mend=mend, **quoted)
        return self.ground.breaker.scripted(self.node, damage, mend)

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that who goes on from it can see that it is damaged."""
        yield from super().meanwhile(status)
        beside = f"{self._file}.sha256"
        tells = self._has(beside) and not self._is_whole()
        yield Held(f"{beside} tells that it is damaged", tells, "" if tells else "nothing tells")

    def afterwards(self) -> Iterator[Held]:
        """Check that it is as it was."""
        if self._has(self._file):
            yield Held(f"{self._file} is whole again", self._is_whole())

    def _has(self, name: str) -> bool:
        with SSH(self.ground.cluster.allocation.head, self.ground.cluster.paths) as ssh:
            return not ssh.run(
                "sudo -n test -f %s", f"{self._folder}/{name}", check=False
            ).exit_code

    def _is_whole(self) -> bool:
        with SSH(self.ground.cluster.allocation.head, self.ground.cluster.paths) as ssh:
            words = (self._folder, f"{self._file}.sha256")
            return not ssh.run(_WHOLE, *words, check=False).exit_code


def _running(ground: Ground) -> list[str]:
    found = record.every(ground.cluster.paths)[0].values()
    return [one.run_id for one in found if one.state == "running"]


def _is_running(ground: Ground, run: str) -> bool:
    return run in _running(ground)


def _ranks(ground: Ground, node: Node) -> dict[str, list[str]]:
    """Return the processes of runs that are at work on a node, by the run."""
    beats = leftovers.processes(ground.cluster.paths, node) or {}
    found = {PurePosixPath(beat).parent.name: processes for beat, processes in beats.items()}
    return {run: processes for run, processes in found.items() if run in _running(ground)}
