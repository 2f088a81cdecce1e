"""What `gpubed run --launcher slurm` asks Slurm for; the session to the head is a stand-in."""

import shlex
from types import SimpleNamespace

import pytest

from gpubed.core.errors import GpubedError, UsageError
from gpubed.jobs.launchers import slurm
from gpubed.jobs.launchers.base import Launch
from support.samples import sample_allocation, sample_plan
from support.sessions import Session


@pytest.fixture
def asked(monkeypatch):
    """A function that submits a job on nodes with so many GPUs and returns sbatch's words."""

    def submit(*gpus, code=0, said="7"):
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
        slurm.create().run(SimpleNamespace(name="lab"), allocation, launch, lambda _: None)
        return shlex.split(lines[0])

    return submit


def test_a_job_has_the_nodes_and_all_the_gpus_that_were_asked_for(asked):
    words = asked(2, 1)
    assert {"--nodes=2", "--nodelist=node-0,node-1", "--gpus=3", "--exclusive"} <= set(words)
    ranks = shlex.split(words[words.index("--wrap") + 1])
    assert ranks[ranks.index("--hosts") + 1] == "node-0:2,node-1:1"


def test_a_node_without_ranks_is_not_asked_for(asked):
    words = asked(0, 2)
    assert {"--nodes=1", "--nodelist=node-1", "--gpus=2"} <= set(words)
    ranks = shlex.split(words[words.index("--wrap") + 1])
    assert ranks[ranks.index("--hosts") + 1] == "node-1:2"


def test_without_gpus_none_is_asked_for(asked):
    assert not any(word.startswith("--gpus") for word in asked(0, 0))


@pytest.mark.parametrize(("code", "reason"), [(127, "is not on the head"), (1, "Slurm refuses")])
def test_a_refusal_is_told(asked, code, reason):
    with pytest.raises(GpubedError, match=reason):
        asked(1, 1, code=code)


def test_a_cluster_without_slurm_is_refused_before_a_run_begins():
    with pytest.raises(UsageError, match="lab has no Slurm"):
        slurm.create().require(sample_plan())
    slurm.create().require(sample_plan(services={"slurm": {}}))
