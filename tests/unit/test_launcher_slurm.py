"""What `gpubed run --launcher slurm` asks Slurm for, and what it believes of its answers.

The session to the head is a STAND-IN, and so are Slurm's programs.
"""

import os
import shlex
from types import SimpleNamespace

import pytest

from gpubed.core.errors import UsageError
from gpubed.jobs.launcher import Launch
from gpubed.jobs.launchers import slurm
from gpubed.nodes import output
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan
from support.sessions import Session

pytestmark = pytest.mark.process


@pytest.fixture
def asked(monkeypatch):
    """A function that submits a job on nodes with so many GPUs and returns sbatch's words."""

    def submit(*gpus, code=0, said="7", partitions=()):
        allocation = sample_allocation(sample_plan(nodes=[{"name": "node", "count": len(gpus)}]))
        nodes = tuple(
            node.model_copy(update={"gpus": count, "slots": count if any(gpus) else 1})
            for node, count in zip(allocation.nodes, gpus, strict=True)
        )
        allocation = allocation.model_copy(update={"nodes": nodes})
        lines = []

        class Head(Session):
            def run(self, command, *words, **_):
                lines.append(command % tuple(shlex.quote(str(word)) for word in words))
                return SimpleNamespace(exit_code=code, stdout=said, stderr="no")

        monkeypatch.setattr(slurm, "SSH", Head)
        monkeypatch.setattr(slurm, "follow", lambda *_: 0)
        monkeypatch.setattr(slurm, "on_head", lambda *_: ["true"])
        launch = Launch("/shared/runs/r", ["python", "main.py"], {"A": "b c"}, sum(gpus))
        plan = sample_plan(
            nodes=[{"name": name, "count": len(gpus)} for name in ("node", "other")],
            services={"slurm": {"partitions": partitions or [{"name": "main"}]}},
        )
        cluster = Cluster(SimpleNamespace(name="lab"), plan, allocation)
        slurm.create().run(cluster, launch, lambda _: None)
        return shlex.split(lines[0])

    return submit


def test_a_job_has_the_nodes_and_all_the_gpus_that_were_asked_for(asked):
    words = asked(2, 1)
    assert {"--nodes=2", "--nodelist=node-0,node-1", "--gpus=3", "--exclusive"} <= set(words)
    ranks = shlex.split(words[words.index("--wrap") + 1])
    assert ranks[ranks.index("--hosts") + 1] == "node-0:2,node-1:1"


def test_a_job_goes_to_a_partition_that_has_its_nodes(asked):
    """By default it would be the first one, and be refused."""
    first = {"name": "first", "groups": ["other"]}
    own = {"name": "own", "groups": ["other", "node"]}
    assert "--partition=own" in asked(1, partitions=[first, own])
    assert "--partition=all" in asked(1, partitions=[first, {"name": "all"}])
    with pytest.raises(UsageError, match="no partition of Slurm has all of the groups node"):
        asked(1, partitions=[first])


AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def told(state, code="0:0", reason="None"):
    return (
        f"echo 'JobId=7 JobName=r JobState={state} Reason={reason} Requeue=0 ExitCode={code} X=1'"
    )


@pytest.fixture
def followed(monkeypatch, tmp_path):
    """A function that follows a job to whose questions Slurm gives these answers, in order."""
    monkeypatch.setattr(slurm, "_submit", lambda *_: "7")
    monkeypatch.setattr(slurm, "on_head", lambda *words: ["sh", "-c", words[-1]])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def program(name, *answers):
        """The last answer is given for ever."""
        (tmp_path / f"{name}.answers").write_text("".join(f"{answer}\n" for answer in answers))
        path = tmp_path / "bin" / name
        path.write_text(
            f"#!/bin/sh\n# STAND-IN\ncd {tmp_path}; echo {name} >>asked\n"
            f'sh -c "$(head -n 1 {name}.answers)"; code=$?\n'
            f"[ $(wc -l <{name}.answers) = 1 ] || sed -i 1d {name}.answers\nexit $code\n"
        )
        path.chmod(0o755)

    def follow(*answers, sacct=("true",)):
        program("sleep", "exec /bin/sleep 0.05")
        program("scontrol", *answers)
        program("squeue", "true")
        program("sacct", *sacct)
        lines = []
        launch = Launch(str(tmp_path), ["python"], {}, 1)
        code = slurm.create().run(SimpleNamespace(name="lab"), launch, lines.append)
        return code, lines

    follow.folder, follow.program = tmp_path, program
    return follow


def test_a_controller_that_is_away_for_a_while_is_no_end_of_the_job(followed):
    running = told("RUNNING")
    code, lines = followed(running, AWAY, AWAY, running, told("COMPLETING"), told("COMPLETED"))
    assert code == 0
    assert lines == [
        "slurm: submitted as job 7",
        "slurm: no answer about job 7, asking on for up to 600 s: "
        "slurm_load_jobs error: Unable to contact slurm controller",
        "slurm: answers again, job 7 is RUNNING",
    ]


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ("FAILED", "3:0", 3),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_an_end_is_told_in_slurms_words(followed, state, said, code):
    ended, lines = followed(told("RUNNING"), told(state, said))
    assert (ended, lines[1:]) == (
        code,
        [f"slurm: job 7 ended: JobState={state} Reason=None ExitCode={said}"],
    )


@pytest.mark.parametrize(
    ("booked", "code", "said"),
    [
        ("COMPLETED|0:0", 0, []),
        ("FAILED|3:0", 3, ["slurm: job 7 ended: JobState=FAILED ExitCode=3:0"]),
        ("CANCELLED by 0|0:15", 1, ["slurm: job 7 ended: JobState=CANCELLED ExitCode=0:15"]),
    ],
)
def test_of_a_job_that_the_controller_has_forgotten_the_accounting_knows_the_end(
    followed, booked, code, said
):
    """It forgets an ended one after minutes, in which nobody may have been able to ask."""
    booked = ["echo 'RUNNING|0:0'", f"echo '{booked}'"]
    assert followed(told("RUNNING"), FORGOTTEN, sacct=booked) == (
        code,
        ["slurm: submitted as job 7", *said],
    )


def test_who_never_answers_is_not_asked_for_ever_and_the_job_may_go_on(followed, monkeypatch):
    monkeypatch.setattr(output, "_PATIENCE_S", 1)
    code, lines = followed(AWAY)
    assert code == 1
    assert lines[-1] == (
        "slurm: no answer for 1 s: job 7 may go on and hold its nodes. "
        "Where Slurm's commands are, once it answers: squeue --jobs=7; scancel 7"
    )
