"""Ends jobs and programs on GPUs: first by SIGTERM, later by SIGKILL."""

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpubed_health import command
from gpubed_use import processes
from gpubed_use.processes import Process

GRACE_S = 45.0  # between SIGTERM and SIGKILL, for a checkpoint
_SLURM = "slurm "
_STEPS = "srun"
_NOTEBOOKS = "/system.slice/jupyterlab.service"
Every = Mapping[int, Process]


def end(
    asked: Mapping[str, float], uptime: float, *, over: bool, everyone: bool
) -> dict[str, float]:
    """Ask jobs to end; once the lease is over, also what holds a GPU, and kill what was asked.

    Args:
        asked: When each was asked, as the last look returned it.
        uptime: Now, in seconds since the node's start.
        everyone: Whether all programs on GPUs are the cluster's, and not only notebooks, as on an
            owner's host.

    Returns:
        When each that is still there was asked.
    """
    every = processes.every()
    heads = processes.jobs(every)
    found = {job: job for job in heads.values() if job.startswith(_SLURM)}
    ranks = [number for number, job in heads.items() if job not in found]
    ranks += _holders(every, everyone=everyone) if over else []
    numbers = {f"{number} {every[number].key}": number for number in ranks}
    now = {}
    for key in (*found, *numbers):
        now[key] = asked.get(key, uptime)
        late = over and uptime - now[key] >= GRACE_S
        if key in asked and not late:
            continue
        if key in found:
            id_ = key.removeprefix(_SLURM)
            command.run("scancel", *(() if late else ("--signal=TERM",)), id_)
            for number in () if late else _scripted(key, heads, every):
                _send(number, every[number], signal.SIGTERM)
        elif late:
            for number in (*_below(numbers[key], every), numbers[key]):
                _send(number, every[number], signal.SIGKILL)
        else:
            # Without its children, which it may need for a checkpoint.
            _send(numbers[key], every[numbers[key]], signal.SIGTERM)
    return now


def _scripted(job: str, heads: Mapping[int, str], every: Every) -> Iterator[int]:
    """Yield the processes below a job's batch script, which scancel(1) does not signal.

    The script itself is one only where it has started nothing; steps (srun) have been signalled.
    """
    for head in (number for number, name in heads.items() if name == job):
        for script in _children(head, every) if processes.is_batch(head) else ():
            below = _below(script, every)
            if not any(every[number].name == _STEPS for number in below):
                yield from below or [script]


def _holders(every: Every, *, everyone: bool) -> Iterator[int]:
    """Yield the processes of users on GPUs."""
    if shutil.which("nvidia-smi") is None:
        return
    mine = processes.people(every, os.getpid())
    code, text = command.run("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    for line in text.splitlines() if not code else ():
        number = int(line) if line.strip().isdigit() else 0
        if number in mine and (everyone or mine[number].group.startswith(_NOTEBOOKS)):
            yield number


def _below(number: int, every: Every) -> list[int]:
    """Return all descendants of a process, children after their own children."""
    started = defaultdict(list)
    for child, one in every.items():
        started[one.parent].append(child)
    found = [number]
    for each in found:
        found += started.pop(each, ())
    return found[:0:-1]


def _children(number: int, every: Every) -> Iterator[int]:
    return (child for child, one in every.items() if one.parent == number)


def _send(number: int, one: Process, what: signal.Signals) -> None:
    """Send a signal to a process, unless its PID belongs to another process by now."""
    with suppress(OSError, ValueError, IndexError):
        there = os.pidfd_open(number)
        try:
            if processes.began(number) == one.began:
                signal.pidfd_send_signal(there, what)
        finally:
            os.close(there)
