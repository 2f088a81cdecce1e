"""STAND-IN for a cluster below a job's run: a head that takes files, a job that ends."""

import itertools
import json
from types import SimpleNamespace
from typing import ClassVar

from gpubed.campaigns import drive
from gpubed.configuration import health
from gpubed.jobs import execution, images, launchers, leftovers

GOOD = {"world_size": 3, "test_accuracy": 0.98, "loss": 0.1}


class Head:
    """Keeps files by name, and gives back what a job would have written; no metrics, no file."""

    metrics: ClassVar = {}
    left_out = ()

    def __init__(self, *_):
        self.files = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def put(self, *_):
        pass

    def write(self, path, text):
        self.files[path.rsplit("/", 1)[-1]] = text

    def get(self, _, here, _own):
        if self.metrics:
            (here / "metrics.json").write_text(json.dumps(self.metrics))
        return self.left_out


def install(replace):
    """Put it in place of what needs a cluster; return what each launch was told, as it grows."""
    launched, told = [], itertools.count()

    def start(cluster, launch, say):
        launched.append([node.name for node in cluster.allocation.with_ranks])
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        Head.metrics["images_per_s"] = 1000.0 * launch.ranks + next(told) % 3
        say("progress: 1/1 epochs")
        return 0

    replace(execution, "SSH", Head)
    replace(leftovers, "end", lambda *_: [])
    replace(launchers, "named", lambda _: SimpleNamespace(run=start))
    replace(health, "usable", lambda cluster: (cluster, []))
    replace(drive, "measure_links", lambda *_: [])
    replace(images, "require", lambda *_: "sha256:one")
    return launched
