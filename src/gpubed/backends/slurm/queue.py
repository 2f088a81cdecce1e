"""Reads what Slurm's commands say of partitions, accounts and the queue, as any user may ask.

Their text is read, not their JSON: that has another shape in each release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubed.backends.slurm.config import Config
from gpubed.backends.slurm.request import PREFIX
from gpubed.nodes.openssh import Login
from gpubed.testbeds.base import Existing, JobState, Offer

_JOBS = "squeue --me --noheader --format='%i|%T|%r|%j'"
_MARK = "== gpubed"
SECTIONS = {
    "version": "sbatch --version",
    "config": "scontrol show config | grep -E '^(ClusterName|SlurmctldHost)'",
    "partitions": "sinfo --noheader --format='%R|%a|%D|%T|%G'",
    "associations": (
        'sacctmgr --noheader --parsable2 show associations user="$(id -un)" format=account,qos'
    ),
}
"""What is asked, by the name of the answer."""
# A count of GPUs, with or without a model: gpu:4, gpu:a100:4(S:0-1) (gres.conf(5)).
_GPUS = re.compile(r"gpu:(?:([^:(),]+):)?(\d+)")


@dataclass(frozen=True)
class Partition:
    """A partition: nodes in all and idle, and the most GPUs of a node, by model."""

    name: str
    is_up: bool
    nodes: int
    idle: int
    gpus: Mapping[str, int]

    @property
    def most_gpus(self) -> int:
        """GPUs of its largest node."""
        return max(self.gpus.values(), default=0)

    @property
    def offer(self) -> Offer:
        """What `gpubed resources` shows of it."""
        note = "" if self.is_up else "it takes no jobs now"
        models = ", ".join(filter(None, self.gpus))
        return Offer(self.name, self.nodes, self.idle, self.most_gpus, models, note)


def ask(login: Login, more: Mapping[str, str]) -> dict[str, str]:
    """Ask all of `SECTIONS` and more in one login; return each answer, errors too."""
    asked = {**SECTIONS, **more}
    script = "\n".join(f"echo '{_MARK} {name}'; ( {one}\n) 2>&1" for name, one in asked.items())
    said = login.run(script, check=False, timeout=120).stdout
    parts = re.split(rf"^{_MARK} (\w+)\n", said, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=False))


def partitions(said: str) -> dict[str, Partition]:
    """Read the answer `partitions`: a line per partition, state and kind of node."""
    found: dict[str, Partition] = {}
    for line in said.splitlines():
        if line.count("|") != 4:
            continue
        name, usable, count, state, gres = line.split("|")
        before = found.get(name, Partition(name, usable == "up", 0, 0, {}))
        gpus = dict(before.gpus)
        for model, number in _GPUS.findall(gres):
            gpus[model] = max(gpus.get(model, 0), int(number))
        idle = before.idle + (int(count) if state == "idle" else 0)
        found[name] = Partition(name, before.is_up, before.nodes + int(count), idle, gpus)
    return found


def allowed(said: str) -> tuple[list[str], list[str]]:
    """Read the answer `associations`: the user's accounts and QoS; none if Slurm keeps none."""
    rows = [line.split("|") for line in said.splitlines() if line.count("|") == 1]
    qos = {one for row in rows for one in row[1].split(",") if one}
    return sorted({row[0] for row in rows}), sorted(qos)


def refused(asked: Config, gpus: int, answers: Mapping[str, str]) -> tuple[str, str]:
    """Return which option Slurm would refuse and why; two empty texts if none is known."""
    known = partitions(answers.get("partitions", ""))
    accounts, qos = allowed(answers.get("associations", ""))
    wanted = (asked.partition or "").split(",") if asked.partition else []
    names = ", ".join(sorted(known)) or "none that you may see"
    for name in wanted:
        if name not in known:
            return "partition", f"there is no partition {name}; there are: {names}"
        if not known[name].is_up:
            return "partition", f"partition {name} takes no jobs now; there are: {names}"
    if asked.account and accounts and asked.account not in accounts:
        return "account", f"{asked.account} is none of your accounts: {', '.join(accounts)}"
    if asked.qos and qos and asked.qos not in qos:
        return "qos", f"{asked.qos} is none of your QoS: {', '.join(qos)}"
    most = max((known[one].most_gpus for one in wanted or known), default=0)
    if gpus > most and known:
        where = f"partition {asked.partition}" if asked.partition else "the cluster"
        return "gpus", f"no node of {where} has {gpus} GPU(s); the largest has {most}"
    return "", ""


def jobs(login: Login) -> list[tuple[Existing, JobState]]:
    """Return the user's jobs that are gpubed's, of all clusters, with why each waits."""
    found = []
    for line in login.run(_JOBS).stdout.splitlines():
        id_, state, reason, name = line.split("|", 3)
        if name.startswith(f"{PREFIX}.") and name.count(".") >= 3:
            _, uuid, _, run = name.split(".", 3)
            thing = Existing("job", name, id_, uuid, transient=True)
            why = "" if reason == "None" else reason
            found.append((thing, JobState(id_, run, state, why)))
    return found


def cluster_of(name: str) -> str:
    """Return the cluster in the name of a job."""
    return name.split(".", 3)[2]


def refusal(said: Sequence[str]) -> str:
    """Return Slurm's words about a job that it refuses, without the program's name."""
    words = [re.sub(r"^(sbatch|allocation failure): (error: )?", "", one) for one in said]
    return "; ".join(dict.fromkeys(one for one in words if one)) or "it gives no reason"
