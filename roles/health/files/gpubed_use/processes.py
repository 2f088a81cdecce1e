"""Whose the processes of a node are, which jobs they belong to, and what they computed.

Times come from `/proc/*/stat`: they are there on any kernel, in containers as on machines.
"""

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubed_health import command

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
# Beside each rank of a run there is one that looks whether the run is still wanted.
RANK = "gpubed-rank"
STEP = "slurmstepd"
_HEARTBEAT = re.compile(r"(?:^|\0)GPUBED_HEARTBEAT=([^\0]*)")
_STEP = re.compile(r"slurmstepd: \[(\d+)\.(\w+)")
_FIRST_PERSON, _NOBODY = 1000, 65534
_LOGIN = re.compile(r"/(user\.slice|sshd?\.service|sshd?@[^/]*\.service)(/|$)")
_CONTAINER = re.compile(r"/(docker|libpod|cri-containerd)[-/]|/kubepods")
_JOB = re.compile(r"[\w.+-]{1,100}")
# An account may have any number of processes, with environments of any size, each started by the
# one before.
_MOST_RANKS, _MOST_BYTES, _MOST_DEEP = 64, 1 << 20, 1000


@dataclass(frozen=True)
class Process:
    """One of them.

    Attributes:
        parent: The number of its parent.
        began: When it began, in ticks since boot: a number may be another process's by now.
        own: Seconds that it computed.
        children: Seconds that its children computed which have ended and were waited for.
        name: Its program, 15 characters at most.
        uid: Its account's number.
        group: Its control group below that of the node.
        terminal: Whether it has one.
    """

    parent: int
    began: int
    own: float
    children: float
    name: str
    uid: int
    group: str
    terminal: bool

    @property
    def key(self) -> str:
        """What the next look finds it by."""
        return str(self.began)


def every() -> dict[int, Process]:
    """Return all processes by their numbers; one that ends meanwhile is left out."""
    root = _group(1).rpartition("/")[0]
    found = {}
    for path in PROC.iterdir():
        if not path.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            name, rest = _stat(int(path.name))
            user, system, of_user, of_system = (int(rest[place]) / TICKS for place in range(11, 15))
            found[int(path.name)] = Process(
                parent=int(rest[1]),
                began=int(rest[19]),
                own=user + system,
                children=of_user + of_system,
                name=name,
                uid=path.stat().st_uid,
                group=_group(int(path.name)).removeprefix(root),
                terminal=rest[4] != "0",
            )
    return found


def began(number: int) -> int:
    """Return when a process began, in ticks since boot.

    Raises:
        OSError: There is none.
    """
    return int(_stat(number)[1][19])


def _stat(number: int) -> tuple[str, list[str]]:
    """Return the name of a process, and the figures after it."""
    said = (PROC / str(number) / "stat").read_text(errors="replace")
    return said[said.index("(") + 1 : said.rindex(")")], said[said.rindex(")") + 2 :].split()


def _group(pid: int) -> str:
    """Return the control group that systemd knows a process by, in version 1 or 2."""
    # Accounts may give groups of their own any name.
    lines = (PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    parts = [line.split(":", 2) for line in lines]
    named = [path for _, kind, path in parts if kind == "name=systemd"]
    return next(iter([*named, *(path for _, kind, path in parts if not kind)]), "")


def line(number: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """Yield a process and those that it was started by, the nearest first; a thousand at most."""
    seen = set[int]()
    while number in processes and number not in seen and len(seen) < _MOST_DEEP:
        yield number
        seen.add(number)
        number = processes[number].parent


def people(processes: Mapping[int, Process], but: int) -> dict[int, Process]:
    """Return the processes that somebody started, and no service of the system.

    Args:
        but: A process that asks, and not for itself: with those that it was started by.
    """
    asking = {*line(but, processes)}
    return {n: one for n, one in processes.items() if n not in asking and _is_persons(one)}


def _is_persons(one: Process) -> bool:
    if one.uid >= _FIRST_PERSON and one.uid != _NOBODY:
        return True
    if _CONTAINER.search(one.group):
        return True
    return bool(_LOGIN.search(one.group)) and not one.name.startswith(("sshd", "systemd", "(sd-"))


def jobs(processes: Mapping[int, Process]) -> dict[int, str]:
    """Return which process is the first of a job, and what the job is called.

    A rank of a run is called as the run; whatever Slurm started, by its number. Any program may
    have these names: the one beside a rank must be of the rank's account, Slurm's must be root's.
    """
    found = {}
    ranks = Counter[int]()
    for number, one in processes.items():
        parent = processes.get(one.parent)
        if one.name == RANK and parent and one.parent > 1 and parent.uid == one.uid:
            ranks[one.uid] += 1
            found[one.parent] = _run(number) if ranks[one.uid] <= _MOST_RANKS else "run"
        elif one.name == STEP and not one.uid and (step := _STEP.match(text(number, "cmdline"))):
            found[number] = f"slurm {step[1]}"
    return found


def is_batch(number: int) -> bool:
    """Say whether a process looks after the batch script of a Slurm job, and no step of it."""
    step = _STEP.match(text(number, "cmdline"))
    return bool(step and step[2] == "batch")


def _run(number: int) -> str:
    """Return the name of the run that a rank belongs to; `run` where it does not say."""
    path = PROC / str(number) / "environ"
    said = text(number, "environ")
    if not said:
        # In a confined container root may not look at other accounts' processes.
        with suppress(OSError):
            whose = path.parent.stat()
            ids = (f"--reuid={whose.st_uid}", f"--regid={whose.st_gid}")
            as_it = ("setpriv", "--clear-groups", *ids)
            said = command.run(*as_it, "head", f"--bytes={_MOST_BYTES}", str(path))[1]
    beat = _HEARTBEAT.search(said)
    name = Path(beat[1]).parent.name if beat else ""
    return name if _JOB.fullmatch(name) else "run"


def text(number: int, what: str) -> str:
    """Return what a file of a process says; nothing where it may not be read, or has ended."""
    with suppress(OSError), (PROC / str(number) / what).open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


def job_of(number: int, processes: Mapping[int, Process], heads: Mapping[int, str]) -> str:
    """Return the job that a process belongs to, by those that it was started by; else empty."""
    return next((heads[n] for n in line(number, processes) if n in heads), "")


def user_of(uid: int) -> str:
    """Return the name of an account; its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def computed(
    before: Mapping[str, list[float]], now: Mapping[int, Process]
) -> Iterator[tuple[int, float]]:
    """Yield what each process has computed since an earlier look, in seconds.

    What ended meanwhile counts for whoever waited for it, but not what was counted already.

    Args:
        before: `figures` of the earlier look.
        now: All processes.
    """
    known = figures(now)
    ended: dict[int, float] = {}
    for key, (parent, own, children) in before.items():
        if key not in known:
            ended[int(parent)] = ended.get(int(parent), 0.0) + own + children
    for number, one in now.items():
        _, own, children = before.get(f"{number} {one.key}", (0, 0.0, 0.0))
        waited = max(0.0, one.children - children - ended.get(number, 0.0))
        yield number, max(0.0, one.own - own) + waited


def figures(processes: Mapping[int, Process]) -> dict[str, list[float]]:
    """Return what the next look compares with: parent, own seconds, children's."""
    return {
        f"{number} {one.key}": [one.parent, round(one.own, 2), round(one.children, 2)]
        for number, one in processes.items()
    }
