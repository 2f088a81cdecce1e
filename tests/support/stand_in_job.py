"""STAND-IN for a job on a cluster: nothing is started; it writes figures and says what it got."""

import dataclasses
import json
import os
import sys
import time

from gpubed import cli
from gpubed.campaigns import drive
from gpubed.configuration import health
from gpubed.core.errors import GpubedError
from gpubed.jobs import execution, images, jobfile
from gpubed.jobs.job_result import JobResult


def run(cluster, request, on_output, terms):
    """As `execution.run`; a file `behaviour.json` of the project says what goes wrong."""
    root, allocation = cluster.paths.project.root, cluster.allocation
    path = root / "behaviour.json"
    behaviour = json.loads(path.read_text()) if path.exists() else {}
    name, settings = request.job, request.settings
    nodes, batch = len(allocation.with_ranks), settings.get("batch", "32")
    called = {
        "settings": dict(settings),
        "nodes": [node.name for node in allocation.with_ranks],
        "ranks": sum(node.slots for node in allocation.nodes),
        "rate_bps": allocation.experiment and allocation.experiment.rate_bps,
        "container": request.container,
        "kin": terms.set_,
    }
    with (root / "calls").open("a") as file:
        file.write(json.dumps(called) + "\n")
    if behaviour.get("unreachable") == batch:
        raise GpubedError("node-2 does not answer")
    here = cluster.paths.runs / execution.name_run(name)
    here.mkdir(parents=True)
    time.sleep(behaviour.get("seconds", 0.002))
    if behaviour.get("interrupted") == batch:
        raise KeyboardInterrupt
    on_output("progress: 1/2 epochs, 3 images/s")
    speed = nodes * int(batch) * (1 + behaviour.get("spread", 0) * time.time_ns() % 97 / 1000)
    metrics = {"images_per_s": speed, "loss": 0.5, "ranks": [{"rank": 0}]}
    metrics = behaviour.get("metrics", metrics)
    if behaviour.get("lacks") == batch:
        metrics["images_per_s"] = None
    if devices := behaviour.get("devices"):
        metrics["device"] = devices[(len(calls(root)) - 1) % len(devices)]
    (here / "metrics.json").write_text(json.dumps(metrics))
    result = JobResult(name, str(here), nodes, metrics, described=jobfile.load(name).metrics)
    if behaviour.get("fails") == batch:
        result.failures = ["the job ended with exit code 7"]
    return result


def install(replace):
    """Put it in place of what needs a cluster; `replace(module, name, value)` does it."""
    replace(execution, "run", run)
    replace(health, "usable", usable)
    replace(images, "require", lambda *_: "an id")
    replace(drive, "measure_links", lambda *_: [])


def usable(cluster):
    """As `health.usable`: a file `lost` of the project names a node that is not well."""
    path = cluster.paths.project.root / "lost"
    lost = path.read_text().split() if path.exists() else []
    kept = tuple(node for node in cluster.allocation.nodes if node.name not in lost)
    left_out = [health.NodeHealth(node=name, problems=("lost",), reachable=False) for name in lost]
    allocation = cluster.allocation.model_copy(update={"nodes": kept})
    return dataclasses.replace(cluster, allocation=allocation), left_out


def calls(root):
    path = root / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    install(setattr)
    os.environ.setdefault("COLUMNS", "200")
    cli.main()
    sys.exit()
