"""A folder of checkpoints, and what `gpubed chaos corrupt-checkpoint` does there."""

import hashlib
import subprocess
from types import SimpleNamespace

import pytest

from gpubed.chaos.scenario import named
from gpubed.testbeds.breaker import Harm


class Shell:
    """A STAND-IN for a node: its scripts run here, as ours."""

    def scripted(self, _node, do, undo, *, mounts=False):
        def run(script):
            subprocess.run(["sh", "-c", script], check=True, capture_output=True)

        return Harm(lambda: run(do), lambda: run(undo), "by hand", undo, mounts)


@pytest.fixture
def checkpoints(tmp_path):
    """A folder with a checkpoint, and what damages it; without privileges there is no `sudo`."""
    folder = tmp_path / "checkpoints" / "c1"
    folder.mkdir(parents=True)
    content = bytes(range(256)) * 8
    content_sum = hashlib.sha256(content).hexdigest()
    (folder / "step").write_bytes(content)
    (folder / "step.sha256").write_text(f"{content_sum}  step\n")
    shared = SimpleNamespace(storage=SimpleNamespace(shared=SimpleNamespace(path=str(tmp_path))))
    there = SimpleNamespace(plan=SimpleNamespace(spec=shared))
    ground = SimpleNamespace(checkpoint="c1", cluster=there, breaker=Shell())

    def harm(file="step"):
        scenario = named("corrupt-checkpoint")(ground, SimpleNamespace(name="node-0"), None)
        scenario.__dict__["_file"] = file
        return scenario.harm()

    return SimpleNamespace(folder=folder, content=content, content_sum=content_sum, harm=harm)
