"""`gpubed bench` of a small campaign on a granted cluster. Jobs are a STAND-IN."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from support import stand_in_job
from support.samples import granted_cluster

ROOT = Path(__file__).parents[2]
PLAIN = """schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [1, 2], batch: [16, 32]}
settings: {epochs: 2}
repeat: 2
"""


class Bench:
    """A cluster, a campaign file, and what the verb says of them."""

    def __init__(self, root):
        self.root, self.paths = root, granted_cluster(root)
        self.file = root / "mine.yml"
        self.file.write_text(PLAIN)
        self.folder = self.paths.campaigns / "mine"

    def __call__(self, *words):
        return CliRunner().invoke(
            cli.build("bench"),
            ["bench", "lab", str(self.file), *words],
            standalone_mode=False,
            catch_exceptions=False,
        )

    def points(self):
        files = sorted((self.folder / "points").glob("*.json"))
        return [json.loads(path.read_text()) for path in files]

    def behave(self, **behaviour):
        (self.root / "behaviour.json").write_text(json.dumps(behaviour))

    @property
    def calls(self):
        return stand_in_job.calls(self.root)

    def process(self):
        return subprocess.Popen(
            [sys.executable, "-m", "support.stand_in_job", "bench", "lab", str(self.file)],
            env={
                **os.environ,
                "GPUBED_ROOT": str(self.root),
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    stand_in_job.install(monkeypatch.setattr)
    return Bench(tmp_path)
