"""One look at the node: everything by which it may be seen that somebody uses it."""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpubed_health import command

from gpubed_use import jupyter, logins, processes, terminals
from gpubed_use.processes import Process

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/net/dev")


def see(
    expected: Mapping[str, Any], before: Mapping[str, Any] | None, own: Collection[str] = ()
) -> dict[str, Any]:
    """Look, and return what is to be judged.

    Keys: `boot`, `uptime` (s), `work` (user, job and CPU seconds since `before`), `processes`
    (what the next look compares with), `ranks` (user, job), `gpus` (utilization from 0 to 1 or
    null, and the user and job of each process on it), `terminals` (user and time by name),
    `kernels` (user, time and state by id), `logins` (user and bytes so far by process),
    `network` (bytes so far), `own` (the logins of gpubed's own, while there is one), and `mute`:
    what could not be asked, in words.

    Args:
        expected: What role health says of this node.
        before: What the last look saw; None for the first.
        own: Keys of logins in which what is done is gpubed's own, and no use.
    """
    mute = list[str]()
    every = processes.every()
    # Containers have the number of their machine's boot, and a first process of their own.
    boot = f"{BOOT.read_text().strip()} {every[1].began}"
    ours = logins.within(own, every)
    people = processes.people(every, os.getpid())
    mine = {number: one for number, one in people.items() if number not in ours}
    heads = processes.jobs(every)

    def whose(number: int) -> list[str]:
        user = processes.user_of(every[number].uid) if number in every else ""
        return [user, processes.job_of(number, every, heads)]

    # Of another boot all numbers are others' by now.
    known = before["processes"] if before and before["boot"] == boot else {}
    work: dict[tuple[str, ...], float] = {}
    for number, seconds in processes.computed(known, every):
        if number in mine and seconds:
            key = tuple(whose(number))
            work[key] = work.get(key, 0.0) + seconds
    return {
        "boot": boot,
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
        "work": [[*key, round(seconds, 2)] for key, seconds in sorted(work.items())],
        "processes": processes.figures(every),
        "ranks": [[*_owner(number, every), job] for number, job in sorted(heads.items())],
        "gpus": _gpus(expected, whose, mute),
        "terminals": {
            name: [processes.user_of(uid), typed] for name, uid, typed in terminals.every()
        },
        "kernels": _kernels(every, mute),
        "logins": logins.carried(every, people),
        "network": _network(),
        "own": sorted(own) if ours else [],
        "mute": mute,
    }


def _owner(number: int, every: Mapping[int, Process]) -> list[str]:
    """Return whose job it is; Slurm's own process is root's, and what it started is not."""
    users = [every[number].uid] if number in every else []
    users += [one.uid for one in every.values() if one.parent == number]
    return [processes.user_of(next((uid for uid in users if uid), 0))]


def _gpus(
    expected: Mapping[str, Any], whose: Callable[[int], list[str]], mute: list[str]
) -> list[dict[str, Any]]:
    if not expected["gpus"] and shutil.which("nvidia-smi") is None:
        return []
    rows = _query("query-gpu", "uuid,utilization.gpu", mute)
    held: dict[str, list[list[str]]] = {}
    for uuid, pid in _query("query-compute-apps", "gpu_uuid,pid", mute):
        # A process of another container has no number here.
        held.setdefault(uuid, []).append(whose(int(pid)) if pid.isdigit() else ["", ""])
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


def _network() -> int:
    """Return the bytes that went through this node's interfaces, in and out."""
    total = 0
    for line in NETWORK.read_text().splitlines()[2:]:
        name, _, counted = line.partition(":")
        cells = counted.split()
        total += 0 if name.strip() == "lo" else int(cells[0]) + int(cells[8])
    return total
