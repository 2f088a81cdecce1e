"""The command line of runs on a granted cluster; jobs start on a STAND-IN."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.jobs import checkpoint_files, execution, launchers, leftovers
from gpubed.jobs.checkpoint_files import Files
from support.samples import granted_cluster
from support.stand_in_head import Head

GOOD = {"world_size": 3, "test_accuracy": 0.98, "loss": 0.1, "images_per_s": 3000.0}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return granted_cluster(tmp_path)


@pytest.fixture
def call(cluster, monkeypatch):
    """A function that calls the command line; jobs start on a STAND-IN, which says how fast."""
    told = iter(range(1000))

    def start(_cluster, launch, say):
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        Head.metrics["images_per_s"] = 1000.0 * launch.ranks + next(told) % 3
        say("progress: 1/1 epochs")
        return 0

    monkeypatch.setattr(execution, "SSH", Head)
    monkeypatch.setattr(leftovers, "end", lambda *_: [])
    kept = Files(frozenset({("step.pt", "1 1")}))
    monkeypatch.setattr(checkpoint_files, "look", lambda *_: kept)
    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    monkeypatch.setattr(health, "usable", lambda cluster: (cluster, []))

    def run(*words):
        return CliRunner().invoke(
            cli.build(), [*words], standalone_mode=False, catch_exceptions=False
        )

    return run


def document(done):
    return json.loads(done.stdout)
