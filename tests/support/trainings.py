"""Trainings that outlive their nodes; nodes, their health and the job are STAND-INS."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.configuration.health import NodeHealth
from gpubed.jobs import checkpoint_files, elastic, execution, launchers, leftovers
from gpubed.jobs.checkpoint_files import Files
from gpubed.nodes.ssh import Unreachable
from support.samples import granted_cluster
from support.stand_in_head import Head


def files(*finished):
    """Files of checkpoints by their names, each with its checksum."""
    sums = frozenset((f"{name}.sha256", "1 1") for name in finished)
    return Files(frozenset((name, "1 1") for name in finished), sums)


class Scene:
    """What happens to a training: a script of runs, and which nodes are not well."""

    def __init__(self, cluster):
        self.cluster, self.script, self.hosts = cluster, [], []
        self.say = lambda _line: None
        self.unwell, self.head_is_gone, self.checkpoints = {}, False, files("a")

    def start(self, cluster, launch, say):
        self.say = say
        self.hosts.append([node.name for node in cluster.allocation.with_ranks])
        Head.metrics = {"world_size": launch.ranks, "loss": 0.1, "loss_fall": 0.1}
        Head.metrics["checkpoint_failures"] = 0
        return self.script.pop(0)() if self.script else 0

    def usable(self, cluster):
        if self.head_is_gone:
            raise Unreachable("node-0 does not answer", "gpubed up lab")
        given = cluster.allocation
        kept = tuple(node for node in given.nodes if node.name not in self.unwell)
        usable = replace(cluster, allocation=given.model_copy(update={"nodes": kept}))
        return usable, list(self.unwell.values())

    def loses(self, name):
        found = NodeHealth(node=name, problems=("away",), reachable=False)
        self.unwell[name] = found


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    made = Scene(granted_cluster(tmp_path))
    kind = SimpleNamespace(run=made.start, ends_early=True)

    monkeypatch.setattr(execution, "SSH", Head)
    monkeypatch.setattr(leftovers, "end", lambda *_: [])
    monkeypatch.setattr(launchers, "named", lambda name: kind if name == "ssh" else _no_end())
    monkeypatch.setattr(health, "usable", made.usable)
    monkeypatch.setattr(checkpoint_files, "look", lambda *_: made.checkpoints)
    monkeypatch.setattr(elastic, "_ASK_AGAIN_S", 0.01)
    return made


def _no_end():
    return SimpleNamespace(run=None, ends_early=False)


@pytest.fixture
def call(scene):
    return lambda *words: say("imagenet", "--elastic", *words)


@pytest.fixture
def detectors(monkeypatch):
    """Those that looked after the runs so far, oldest first."""
    seen, made = [], elastic.StallDetector

    def make(*given, **more):
        seen.append(made(*given, **more))
        return seen[-1]

    monkeypatch.setattr(elastic, "StallDetector", make)
    return seen


def say(*words):
    """Call `gpubed run lab`."""
    words = ["run", "lab", *words]
    return CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)
