"""Processes of a node: their accounts, jobs and CPU time, from `/proc` (proc(5))."""

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
RANK = "gpubed-rank"  # runs beside each rank of a run
STEP = "slurmstepd"
_HEARTBEAT = re.compile(r"(?:^|\0)GPUBED_HEARTBEAT=([^\0]*)")
_STEP = re.compile(r"slurmstepd: \[(\d+)\.(\w+)")
_FIRST_USER, _NOBODY = 1000, 65534
_LOGIN = re.compile(r"/(user\.slice|sshd?\.service|sshd?@[^/]*\.service)(/|$)")
_CONTAINER = re.compile(r"/(docker|libpod|cri-containerd)[-/]|/kubepods")
_JOB = re.compile(r"[\w.+-]{1,100}")
# Bounds against accounts with long chains of processes and large environments.
_MOST_RANKS, _MOST_BYTES, _MOST_DEEP = 64, 1 << 20, 1000


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        began: In ticks since boot: its number may be another process's later.
        own: Seconds of CPU.
        children: Seconds of CPU of its children that have ended.
        name: Of its program, 15 characters at most.
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
        """Identifies the process among others with the same PID."""
        return str(self.began)


def every() -> dict[int, Process]:
    """Return all processes by PID; processes that end meanwhile are left out."""
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
    """Return the start time of a process, in ticks since boot.

    Raises:
        OSError: There is none.
    """
    return int(_stat(number)[1][19])


def _stat(number: int) -> tuple[str, list[str]]:
    said = (PROC / str(number) / "stat").read_text(errors="replace")
    return said[said.index("(") + 1 : said.rindex(")")], said[said.rindex(")") + 2 :].split()


def _group(pid: int) -> str:
    """Return the control group of systemd for a process, in version 1 or 2."""
    lines = (PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    parts = [line.split(":", 2) for line in lines]
    named = [path for _, kind, path in parts if kind == "name=systemd"]
    return next(iter([*named, *(path for _, kind, path in parts if not kind)]), "")


def line(number: int, processes: Mapping[int, Process]) -> Iterator[int]:
    """Yield a process and its ancestors, parent first; a thousand at most."""
    seen = set[int]()
    while number in processes and number not in seen and len(seen) < _MOST_DEEP:
        yield number
        seen.add(number)
        number = processes[number].parent


def people(processes: Mapping[int, Process], but: int) -> dict[int, Process]:
    """Return the processes of users, without system services and the ancestors of process `but`."""
    asking = {*line(but, processes)}
    return {n: one for n, one in processes.items() if n not in asking and _is_of_user(one)}


def _is_of_user(one: Process) -> bool:
    if one.uid >= _FIRST_USER and one.uid != _NOBODY:
        return True
    if _CONTAINER.search(one.group):
        return True
    return bool(_LOGIN.search(one.group)) and not one.name.startswith(("sshd", "systemd", "(sd-"))


def jobs(processes: Mapping[int, Process]) -> dict[int, str]:
    """Return the first process of each job, and the job's name.

    Any program may have these names: the one beside a rank must be of the rank's account, Slurm's
    must be root's.
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
    """Return whether a process of Slurm has started a batch script, and not a step."""
    step = _STEP.match(text(number, "cmdline"))
    return bool(step and step[2] == "batch")


def _run(number: int) -> str:
    """Return the name of a rank's run; `run` if it is unknown."""
    path = PROC / str(number) / "environ"
    said = text(number, "environ")
    if not said:  # in a confined container root may not look at other accounts' processes
        with suppress(OSError):
            whose = path.parent.stat()
            ids = (f"--reuid={whose.st_uid}", f"--regid={whose.st_gid}")
            as_it = ("setpriv", "--clear-groups", *ids)
            said = command.run(*as_it, "head", f"--bytes={_MOST_BYTES}", str(path))[1]
    beat = _HEARTBEAT.search(said)
    name = Path(beat[1]).parent.name if beat else ""
    return name if _JOB.fullmatch(name) else "run"


def text(number: int, what: str) -> str:
    """Return the content of a file of a process; empty if it cannot be read."""
    with suppress(OSError), (PROC / str(number) / what).open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


def job_of(number: int, processes: Mapping[int, Process], heads: Mapping[int, str]) -> str:
    """Return the job of a process; empty without a job."""
    return next((heads[n] for n in line(number, processes) if n in heads), "")


def user_of(uid: int) -> str:
    """Return the name of an account; its id if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def computed(
    before: Mapping[str, list[float]], now: Mapping[int, Process]
) -> Iterator[tuple[int, float]]:
    """Yield the seconds of CPU of each process since an earlier look.

    Children that have ended count for the process that waited for them, but for what was counted
    before.

    Args:
        before: `figures` of the earlier look.
    """
    known, ended = figures(now), Counter[int]()
    for key, (parent, own, children) in before.items():
        if key not in known:
            ended[int(parent)] += own + children
    for number, one in now.items():
        _, own, children = before.get(f"{number} {one.key}", (0, 0.0, 0.0))
        waited = max(0.0, one.children - children - ended[number])
        yield number, max(0.0, one.own - own) + waited


def figures(processes: Mapping[int, Process]) -> dict[str, list[float]]:
    """Return the values to compare with later: parent, own CPU seconds, those of children."""
    return {
        f"{number} {one.key}": [one.parent, round(one.own, 2), round(one.children, 2)]
        for number, one in processes.items()
    }
