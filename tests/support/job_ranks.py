"""Ranks of job imagenet on this machine, over its loopback, started as launchers do."""

import json
import os
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "jobs/imagenet"
SMALL = ("--model", "resnet18", "--image-size", "32", "--batch-size", "8")
MAKE_IMAGES = """
import sys
from pathlib import Path
from PIL import Image
for colour in ("blue", "green", "red"):
    for number in range(int(sys.argv[2])):
        path = Path(sys.argv[1]) / colour / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 36), colour).save(path)
"""


class Ranks:
    """Starts ranks on CPUs; `gpu.conftest` has those on a GPU."""

    def __init__(self, python, storage):
        self.python, self.storage = python, Path(storage)

    def environment(self, **more):
        """Return what a rank finds."""
        kept = {"PATH": f"{Path(self.python).parent}:/usr/bin:/bin", "HOME": self.storage}
        shared = {"GPUBED_SHARED": self.storage, "GPUBED_DATASETS": self.storage}
        one = {"HOROVOD_GLOO_IFACE": "lo", "OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1}
        return {name: str(value) for name, value in {**kept, **shared, **one, **more}.items()}

    def start(self, out, arguments, rank=0, ranks=1, before=None, **more):
        """Start one rank, which averages as torch does unless arguments say another way."""
        out = self.storage / out
        out.mkdir(exist_ok=True)
        place = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": ranks, "HOROVOD_LOCAL_RANK": rank}
        return subprocess.Popen(
            [self.python, JOB / "main.py", "--out", out, "--framework", "ddp", *arguments],
            env=self.environment(**place, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )

    def run(self, name, *arguments, ranks=2, before=None, **more):
        """Run a small training to its end; return its metrics, and what rank 0 said."""
        given = (*SMALL, *map(str, arguments))
        started = [self.start(name, given, rank, ranks, before, **more) for rank in range(ranks)]
        said = [process.communicate(timeout=600) for process in started]
        assert [process.returncode for process in started] == [0] * ranks, said
        return self.metrics(name), said[0][0]

    def launched(self, name, *arguments, program=JOB / "main.py", **more):
        """Run two ranks by Horovod's own launcher, which sees to it that they end."""
        (self.storage / name).mkdir(exist_ok=True)
        command = [self.python, "-m", "horovod.runner.launch", "--gloo"]
        command += ["--network-interfaces", "lo", "-np", "2", "-H", "localhost:2"]
        given = {"GPUBED_ADDRESS": "127.0.0.1", "HOROVOD_CPU_OPERATIONS": "gloo", **more}
        return subprocess.run(
            [*command, *self.rank(), program, "--out", self.storage / name, *map(str, arguments)],
            env=self.environment(**given),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def rank(self):
        """Return the words that a launcher starts a rank with."""
        return [self.python]

    def metrics(self, name):
        """Return what a run wrote."""
        return json.loads((self.storage / name / "metrics.json").read_text())

    def make_images(self, name, of_each):
        """Put images of three colours into the shared storage, so many of each."""
        subprocess.run(
            [self.python, "-c", MAKE_IMAGES, self.storage / name, str(of_each)],
            check=True,
            env={**os.environ, **self.environment()},
        )


def parts(metrics):
    """Return the seconds of a step's parts, together."""
    return sum(metrics[name] for name in ("data_s", "compute_s", "exposed_communication_s"))


def is_whole(metrics):
    """Say whether a step's parts are the step."""
    return parts(metrics) == pytest.approx(metrics["step_s"], rel=0.03)
