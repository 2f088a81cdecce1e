"""Reads partitions, accounts and the queue from Slurm's commands, as any user may.

Their text is parsed, since their JSON differs between releases.
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
"""Commands by the name of their output."""
# GPUs, with or without a model: gpu:4, gpu:a100:4(S:0-1) (gres.conf(5)).
_GPUS = re.compile(r"gpu:(?:([^:(),]+):)?(\d+)")


def ask(login: Login, more: Mapping[str, str]) -> dict[str, str]:
    """Run the commands of `SECTIONS` and `more` in one login; return their output with errors."""
    commands = {**SECTIONS, **more}
    script = "\n".join(f"echo '{_MARK} {name}'; ( {run}\n) 2>&1" for name, run in commands.items())
    output = login.run(script, check=False, timeout=120).stdout
    parts = re.split(rf"^{_MARK} (\w+)\n", output, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


def partitions(output: str) -> dict[str, Offer]:
    """Parse the section `partitions`, which has a line per partition, state and kind of node."""
    found: dict[str, Offer] = {}
    for line in output.splitlines():
        if line.count("|") != 4:
            continue
        name, usable, count, state, gres = line.split("|")
        note = "" if usable == "up" else "it takes no jobs now"
        offer = found.get(name, Offer(name, 0, 0, 0, note=note))
        gpus = _GPUS.findall(gres)
        models = {*offer.gpu_model.split(", "), *(model for model, _ in gpus)} - {""}
        found[name] = replace(
            offer,
            total=(offer.total or 0) + int(count),
            free=(offer.free or 0) + (int(count) if state == "idle" else 0),
            gpus=max(offer.gpus or 0, *(int(number) for _, number in gpus), 0),
            gpu_model=", ".join(sorted(models)),
        )
    return found


def refused(config: Config, gpus: int, answers: Mapping[str, str]) -> tuple[str, str]:
    """Return an option that Slurm would refuse, and the reason; empty texts if there is none."""
    known = partitions(answers.get("partitions", ""))
    rows = [row.split("|") for row in answers.get("associations", "").split() if "|" in row]
    accounts = {row[0] for row in rows}
    qos = {name for row in rows for name in row[1].split(",") if name}
    wanted = config.partition.split(",") if config.partition else []
    for name in wanted:
        if name not in known or known[name].note:
            why = (
                f"partition {name}: {known[name].note}" if name in known else f"no partition {name}"
            )
            return "partition", f"{why}; there are: {', '.join(sorted(known)) or 'none for you'}"
    for option, value, its in (("account", config.account, accounts), ("qos", config.qos, qos)):
        if value and its and value not in its:
            return option, f"you may not use {option} {value}; there are: {', '.join(sorted(its))}"
    most = max((known[name].gpus or 0 for name in wanted or known), default=0)
    if gpus > most and known:
        where = f"partition {config.partition}" if config.partition else "the cluster"
        return "gpus", f"no node of {where} has {gpus} GPU(s); the largest has {most}"
    return "", ""


def jobs(login: Login) -> list[tuple[str, Existing, JobState]]:
    """Return the user's jobs that gpubed submitted, each after the name of its cluster."""
    found = []
    listed = login.run("squeue --me --noheader --format='%i|%T|%r|%j'").stdout
    for line in listed.splitlines():
        id_, state, reason, name = line.split("|", 3)
        if name.startswith(f"{PREFIX}.") and name.count(".") >= 3:
            _, uuid, cluster, run = name.split(".", 3)
            thing = Existing("job", name, id_, uuid, transient=True)
            found.append((cluster, thing, JobState(id_, run, state, reason.replace("None", ""))))
    return found


def refusal(lines: Sequence[str]) -> str:
    """Return Slurm's reasons for refusing a job, without the program's name."""
    reasons = [re.sub(r"^(sbatch|allocation failure): (error: )?", "", line) for line in lines]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or "it gives no reason"
