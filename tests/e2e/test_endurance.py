"""Trainings and clusters under faults, for hours: `make test-endurance`.

What is found is kept and becomes docs/reference/endurance.md. Parts may run on different days:
`-k watch`.
"""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from gpubed.core import intervals
from support import endurance, kept, written
from support.cluster import Cluster, unique

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.timeout(5 * 3600),
]
SEED = 18
NOISE = {
    "model": "squeezenet1_1",
    "image_size": 64,
    "batch_size": 16,
    "learning_rate": 0.001,
    "loader_threads": 1,
}
STEPS, EVERY = 60, 10
# What `gpubed chaos` breaks and puts right, and what is done to a rank.
CHAOS = ("freeze-node", "kill-node", "cut-experiment", "lossy-link")
RANKS = {"rank killed": "KILL", "rank frozen": "STOP"}
FAULTS = int(os.environ.get("GPUBED_FAULTS", "30"))
WATCH_S = float(os.environ.get("GPUBED_WATCH_S", "7200"))
ROUNDS = 5
SEEDS = 5
PATIENCE_S = 900


@pytest.fixture(scope="module")
def lab(docker, tmp_path_factory):
    """Three nodes with images to learn from, and JupyterLab."""
    made = Cluster(tmp_path_factory.mktemp("endurance"), unique("endurance"))
    try:
        made.call("up")
        written.images(made, "written", "train", "val")
        yield made
    finally:
        made.call("down", "-y", rc=None)


@pytest.fixture
def tell(request):
    """Say at once what was found, since it may be hours until the end."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def write(*found):
        for one in found:
            reporter.write_line(str(one))

    return write


def words(**settings):
    return [word for k, v in settings.items() for word in ("--set", f"{k}={v}")]


def train(cluster, *more, **settings):
    """Train undisturbed; returns the document and how long the command took, in seconds."""
    began = time.monotonic()
    told = cluster.json("run", "imagenet", *more, *words(**settings))
    return told, time.monotonic() - began


def begin(cluster, **settings):
    """Begin an elastic training."""
    chosen = words(**{"checkpoint_steps": EVERY, **settings})
    command = ("run", cluster.name, "imagenet", "--elastic", "--min", "1", "--json", *chosen)
    return cluster.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process):
    """Wait for a training; returns its document."""
    out, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out + said
    return json.loads(out)


def container(cluster, node):
    wanted = ["--filter", f"label=gpubed.name={cluster.name}", "--filter", f"name={node}$"]
    listed = subprocess.run(
        ["docker", "ps", "-q", *wanted], capture_output=True, text=True, check=True
    )
    return listed.stdout.strip()


def signalled(cluster, node, process, name):
    """Send a signal to a training's rank on a node, as soon as there is one."""
    command = ["docker", "exec", container(cluster, node), "pkill", f"-{name}", "-f", "main.py"]
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if process.poll() is not None:
            return
        time.sleep(0.5)


def break_something(cluster, fault, draw, process):
    """Play a fault, and put it right where it does not end by itself."""
    node = f"node-{draw.randrange(3)}"
    if fault in RANKS:
        signalled(cluster, node, process, RANKS[fault])
        return node
    told = cluster.json("chaos", fault, "--on", node, "--for", "20s", "-y", rc=None)
    assert told["ok"], [one for one in told["held"] if not one["ok"]]
    return node


def steps_said(cluster, run_id):
    log = cluster.state / "runs" / run_id / "output.log"
    lines = log.read_text().splitlines() if log.exists() else []
    said = [line.partition("progress: ")[2].partition("/")[0] for line in lines]
    return [int(step) for step in said if step.isdigit()]


def repeated(cluster, legs):
    """Return how many steps were made twice, as far as ranks told of them."""
    found, last = 0, 0
    for leg in legs:
        steps = steps_said(cluster, leg["run_id"])
        if not steps:
            continue
        # Its first line comes within a second of its first step.
        began = (steps[0] - 1) // EVERY * EVERY
        found = max(found, last - began)
        last = max(last, steps[-1])
    return found


def test_a_training_outlives_each_of_many_faults(lab, tell):
    draw = random.Random(SEED)
    settings = {**NOISE, "steps": STEPS}
    plain = [
        train(lab, "--elastic", "--min", "1", **settings, checkpoint_steps=EVERY)[1]
        for _ in range(3)
    ]
    kinds = [*RANKS, *CHAOS]
    played = []
    for number in range(FAULTS):
        fault = kinds[number % len(kinds)]
        process = begin(lab, **settings)
        began = time.monotonic()
        time.sleep(draw.uniform(0, 0.9 * min(plain)))
        node = break_something(lab, fault, draw, process)
        told = ended(process)
        assert told["status"] == "ok"
        again = repeated(lab, told["legs"])
        one = {"fault": fault, "node": node, "seconds": time.monotonic() - began}
        played.append({**one, "legs": len(told["legs"]), "repeated": again})
        tell(played[-1])
        assert again <= EVERY + 1, told["legs"]
        lab.call("up")
    assert lab.json("status")["state"] == "ready"
    found = {"steps": STEPS, "every": EVERY, "undisturbed_s": plain, "played": played}
    kept.keep(endurance.KEPT, faults=found)


def test_a_disturbed_training_learns_as_much_as_an_undisturbed_one(lab, tell):
    settings = {
        "model": "shufflenet_v2_x0_5",
        "image_size": 32,
        "batch_size": 32,
        "dataset": "written",
        "loader_threads": 1,
        "epochs": 12,
    }
    found = {"undisturbed": [], "disturbed": []}
    for seed in range(SEEDS):
        told, _ = train(lab, **settings, seed=seed)
        found["undisturbed"].append(told["metrics"]["val_accuracy"])
        process = begin(lab, **settings, seed=seed)
        time.sleep(25)
        for fault, node in (("remove-node", "node-2"), ("stop-service", "node-0")):
            played = lab.json("chaos", fault, "--on", node, "--for", "1s", "-y", rc=None)
            assert played["ok"], [one for one in played["held"] if not one["ok"]]
        told = ended(process)
        assert len(told["legs"]) > 1, "nothing happened to it"
        assert repeated(lab, told["legs"]) <= EVERY + 1
        found["disturbed"].append(told["metrics"]["val_accuracy"])
        tell(found)
    kept.keep(endurance.KEPT, accuracy=found)
    difference = intervals.difference(found["disturbed"], found["undisturbed"])
    assert difference.low <= 0 <= difference.high


def test_checkpoints_and_elasticity_cost_little(lab, tell):
    steps, every = 150, 50
    ways = {
        "plain": ((), {}),
        "checkpoints": ((), {"checkpoint_steps": every}),
        "elastic, with checkpoints": (("--elastic",), {"checkpoint_steps": every}),
    }
    draw, seconds = random.Random(SEED), {name: [] for name in ways}
    for number in range(ROUNDS):
        for name in draw.sample(list(ways), len(ways)):
            more, settings = ways[name]
            if name == "checkpoints":
                settings = {**settings, "checkpoint": f"overhead-{number}"}
            seconds[name].append(train(lab, *more, **NOISE, steps=steps, **settings)[1])
    tell(seconds)
    ratios = {
        name: intervals.ratio(seconds[name], seconds["plain"])._asdict()
        for name in ways
        if name != "plain"
    }
    found = {"steps": steps, "every": every, "runs": ROUNDS, "ratios": ratios, "seconds": seconds}
    kept.keep(endurance.KEPT, overhead=found)
    assert all(one["low"] <= 1.02 for one in ratios.values())


def wait_until_ready(cluster):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = cluster.json("status", rc=None)
        if told["state"] == "ready" and all(it["state"] == "ready" for it in told["nodes"]):
            return
        assert time.monotonic() < deadline, told
        time.sleep(5)


def test_a_watch_keeps_a_cluster_ready_under_faults(lab, tmp_path, tell):
    kinds = ["kill-node", "stop-sshd", "cut-experiment", "cut-control", "stop-service"]
    draw, faults = random.Random(SEED), []
    lab.node("head", "echo kept | sudo tee /shared/kept > /dev/null")
    said, told = (tmp_path / name for name in ("said", "told.jsonl"))
    with told.open("w") as out, said.open("w") as errors:
        command = ("watch", lab.name, "--every", "20s", "--repairs", "1000", "--json")
        watch = lab.start(*command, stdout=out, stderr=errors)
        try:
            until = time.monotonic() + WATCH_S
            while time.monotonic() < until:
                fault = draw.choice(kinds)
                node = "node-0" if fault == "stop-service" else f"node-{draw.randrange(3)}"
                lab.json("chaos", fault, "--on", node, "--only-break", "-y")
                faults.append(fault)
                time.sleep(draw.uniform(60, 240))
                wait_until_ready(lab)
                assert watch.poll() is None, said.read_text()
        finally:
            watch.send_signal(signal.SIGINT)
            watch.wait(120)
    events = [json.loads(line) for line in told.read_text().splitlines()]
    tell(*events)
    assert all(event["why"] for event in events)
    assert lab.node("head", "cat /shared/kept") == "kept\n"
    lab.call("audit")
    repairs = sum(event["event"] == "repair" for event in events)
    kept.keep(endurance.KEPT, watch={"seconds": WATCH_S, "faults": faults, "repairs": repairs})
