"""One look at the node: jobs, GPUs, CPUs, terminals, logins and notebooks."""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpubed_health import command

from gpubed_use import jupyter, processes
from gpubed_use.processes import Process

BOOT = Path("/proc/sys/kernel/random/boot_id")
TERMINALS = Path("/dev/pts")
_SERVER = "sshd"  # and `sshd-session` of OpenSSH 9.8 and later
_WRITTEN = re.compile(r"^wchar: (\d+)$", re.MULTILINE)


def see(
    expected: Mapping[str, Any], before: Mapping[str, Any] | None, own: Collection[str] = ()
) -> dict[str, Any]:
    """Look at the node, and return the measurements for `judging`.

    Keys: `boot`, `uptime` (s), `work` (user, job and CPU seconds since `before`), `processes`
    (what the next look compares with), `ranks` (user, job), `gpus` (utilization from 0 to 1 or
    null, and the user and job of each process on it), `terminals` (user and time by name),
    `kernels` (user, time and state by id), `logins` (user and bytes so far by process), `own`, and
    `mute`: what could not be asked, in words.

    Args:
        expected: What role health expects of this node.
        before: The last look; None for the first.
        own: Keys of logins of gpubed itself.
    """
    mute = list[str]()
    every = processes.every()
    # Containers have the boot id of their host, and their own first process.
    boot = f"{BOOT.read_text().strip()} {every[1].began}"
    ours, people = within(own, every), processes.people(every, os.getpid())
    heads = processes.jobs(every)

    def whose(number: int) -> tuple[str, str]:
        user = processes.user_of(every[number].uid) if number in every else ""
        return user, processes.job_of(number, every, heads)

    # After another boot, PIDs belong to other processes.
    known = before["processes"] if before and before["boot"] == boot else {}
    work = Counter[tuple[str, str]]()
    for number, seconds in processes.computed(known, every):
        if number in people and number not in ours and seconds:
            work[whose(number)] += seconds
    return {
        "boot": boot,
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
        "work": [[*key, round(seconds, 2)] for key, seconds in sorted(work.items())],
        "processes": processes.figures(every),
        "ranks": [[_owner(number, every), job] for number, job in sorted(heads.items())],
        "gpus": _gpus(expected, whose, mute),
        "terminals": {name: [processes.user_of(uid), typed] for name, uid, typed in terminals()},
        "kernels": _kernels(every, mute),
        "logins": carried(every, people),
        "own": sorted(own) if ours else [],
        "mute": mute,
    }


def _owner(number: int, every: Mapping[int, Process]) -> str:
    """Return the account of a job; Slurm's own process is root's, and its children are not."""
    users = [every[number].uid] if number in every else []
    users += [one.uid for one in every.values() if one.parent == number]
    return processes.user_of(next((uid for uid in users if uid), 0))


def _gpus(
    expected: Mapping[str, Any], whose: Callable[[int], tuple[str, str]], mute: list[str]
) -> list[dict[str, Any]]:
    if not expected["gpus"] and shutil.which("nvidia-smi") is None:
        return []
    rows = _query("query-gpu", "uuid,utilization.gpu", mute)
    held: dict[str, list[list[str]]] = {}
    for uuid, pid in _query("query-compute-apps", "gpu_uuid,pid", mute):
        # A process of another container has no PID here.
        held.setdefault(uuid, []).append([*whose(int(pid))] if pid.isdigit() else ["", ""])
    return [
        {"utilization": int(ratio) / 100 if ratio.isdigit() else None, "held": held.get(uuid, [])}
        for uuid, ratio in rows
    ]


def _query(what: str, fields: str, mute: list[str]) -> Iterator[list[str]]:
    code, text = command.run("nvidia-smi", f"--{what}={fields}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    if code or any(len(row) != 2 for row in rows):
        mute.append(f"nvidia-smi does not tell: {' '.join(text.split())[:200] or code}")
        return
    yield from rows


def _kernels(every: Mapping[int, Process], mute: list[str]) -> dict[str, list[str]]:
    found = {}
    for user, told in jupyter.kernels({one.uid for one in every.values()}):
        if isinstance(told, str):
            mute.append(f"JupyterLab of {user} does not tell: {told}")
        else:
            found |= {f"{user} {id_}": [user, at, state] for id_, at, state in told}
    return found


def carried(every: Mapping[int, Process], mine: Collection[int]) -> dict[str, list[object]]:
    """Return the account of each login without a terminal, and the bytes that it transferred.

    These are what its SSH server has written; None where that may not be read, as by root of a
    confined container. A login that only forwards ports has no command and is left out.
    """
    found: dict[str, list[object]] = {}
    for number in sorted(mine):
        one = every[number]
        server = every.get(one.parent)
        if not (server and server.name.startswith(_SERVER)) or one.terminal:
            continue
        # The server's own command has its name, as its other processes have.
        if one.name.startswith(_SERVER) and "@internal-sftp" not in processes.text(
            number, "cmdline"
        ):
            continue
        written = _WRITTEN.search(processes.text(one.parent, "io"))
        user = processes.user_of(one.uid)
        found[_key(one.parent, server)] = [user, int(written[1]) if written else None]
    return found


def login_of(number: int, every: Mapping[int, Process]) -> str:
    """Return the key of a process's login; empty without a login."""
    line = processes.line(number, every)
    return next((_key(n, every[n]) for n in line if every[n].name.startswith(_SERVER)), "")


def within(keys: Collection[str], every: Mapping[int, Process]) -> set[int]:
    """Return the processes of the present logins with these keys."""
    tops = {n for n, one in every.items() if _key(n, one) in keys}
    return {n for n in every if not tops.isdisjoint(processes.line(n, every))} if tops else set()


def _key(number: int, server: Process) -> str:
    return f"{number} {server.key}"


def terminals() -> Iterator[tuple[str, int, float]]:
    """Yield each terminal, its account's id, and the time of its last input.

    Terminals of JupyterLab and of tmux are terminals as those of a login.
    """
    with suppress(OSError):
        for path in TERMINALS.iterdir():
            with suppress(OSError):
                found = path.stat()
                if path.name.isdigit():
                    yield path.name, found.st_uid, found.st_atime


def tell(text: str) -> None:
    """Write on all terminals."""
    plain = "".join(each for each in text if each.isprintable())
    for name, _, _ in terminals():
        with suppress(OSError):
            # A blocked terminal must not delay the others.
            flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
            terminal = os.open(TERMINALS / name, flags)
            try:
                os.write(terminal, f"\r\n\a{plain}\r\n".encode())
            finally:
                os.close(terminal)
