"""Reads what Slurm's commands say of partitions, accounts and the queue, as any user may ask.

Their text is read, not their JSON: that has another shape in each release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpubed.backends.slurm.config import Config
from gpubed.backends.slurm.request import PREFIX
from gpubed.nodes.openssh import Login
from gpubed.testbeds.base import Existing, JobState, Offer

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


def ask(login: Login, more: Mapping[str, str]) -> dict[str, str]:
    """Ask all of `SECTIONS` and more in one login; return each answer, errors too."""
    asked = {**SECTIONS, **more}
    script = "\n".join(f"echo '{_MARK} {name}'; ( {one}\n) 2>&1" for name, one in asked.items())
    said = login.run(script, check=False, timeout=120).stdout
    parts = re.split(rf"^{_MARK} (\w+)\n", said, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (one.strip() for one in parts[1::2]), strict=True))


def partitions(said: str) -> dict[str, Offer]:
    """Read the answer `partitions`: a line per partition, state and kind of node."""
    found: dict[str, Offer] = {}
    for line in said.splitlines():
        if line.count("|") != 4:
            continue
        name, usable, count, state, gres = line.split("|")
        note = "" if usable == "up" else "it takes no jobs now"
        one = found.get(name, Offer(name, 0, 0, 0, note=note))
        gpus = _GPUS.findall(gres)
        models = {*one.gpu_model.split(", "), *(model for model, _ in gpus)} - {""}
        found[name] = replace(
            one,
            total=(one.total or 0) + int(count),
            free=(one.free or 0) + (int(count) if state == "idle" else 0),
            gpus=max(one.gpus or 0, *(int(number) for _, number in gpus), 0),
            gpu_model=", ".join(sorted(models)),
        )
    return found


def refused(asked: Config, gpus: int, answers: Mapping[str, str]) -> tuple[str, str]:
    """Return which option Slurm would refuse and why; two empty texts if none is known."""
    known = partitions(answers.get("partitions", ""))
    rows = [one.split("|") for one in answers.get("associations", "").split() if "|" in one]
    accounts = {row[0] for row in rows}
    qos = {one for row in rows for one in row[1].split(",") if one}
    wanted = asked.partition.split(",") if asked.partition else []
    for name in wanted:
        if name not in known or known[name].note:
            why = (
                f"partition {name}: {known[name].note}" if name in known else f"no partition {name}"
            )
            return "partition", f"{why}; there are: {', '.join(sorted(known)) or 'none for you'}"
    for option, one, its in (("account", asked.account, accounts), ("qos", asked.qos, qos)):
        if one and its and one not in its:
            return option, f"you may not use {option} {one}; there are: {', '.join(sorted(its))}"
    most = max((known[one].gpus or 0 for one in wanted or known), default=0)
    if gpus > most and known:
        where = f"partition {asked.partition}" if asked.partition else "the cluster"
        return "gpus", f"no node of {where} has {gpus} GPU(s); the largest has {most}"
    return "", ""


def jobs(login: Login) -> list[tuple[str, Existing, JobState]]:
    """Return the user's jobs that are gpubed's, each behind the name of its cluster."""
    found = []
    listed = login.run("squeue --me --noheader --format='%i|%T|%r|%j'").stdout
    for line in listed.splitlines():
        id_, state, reason, name = line.split("|", 3)
        if name.startswith(f"{PREFIX}.") and name.count(".") >= 3:
            _, uuid, cluster, run = name.split(".", 3)
            thing = Existing("job", name, id_, uuid, transient=True)
            found.append((cluster, thing, JobState(id_, run, state, reason.replace("None", ""))))
    return found


def refusal(said: Sequence[str]) -> str:
    """Return Slurm's words about a job that it refuses, without the program's name."""
    words = [re.sub(r"^(sbatch|allocation failure): (error: )?", "", one) for one in said]
    return "; ".join(dict.fromkeys(one for one in words if one)) or "it gives no reason"
