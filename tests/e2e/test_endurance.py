"""Trainings and clusters under the faults of docs/how-to/chaos.md: `make test-endurance`.

What is found is kept and becomes docs/reference/endurance.md. Parts may run on different days:
`-k watch`; so may faults: `GPUBED_FIRST=10 GPUBED_FAULTS=10 … -k outlives`.
"""

import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from gpubed.core import intervals, runlock
from support import breaking, endurance, kept, written
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
# What is done to a node, and what to a rank.
NODES = ("freeze-node", "kill-node", "cut-experiment", "lossy-link")
RANKS = {"rank killed": "KILL", "rank frozen": "STOP"}
FIRST = int(os.environ.get("GPUBED_FIRST", "0"))
FAULTS = int(os.environ.get("GPUBED_FAULTS", "30"))
WATCH_S = float(os.environ.get("GPUBED_WATCH_S", "7200"))
ROUNDS = 5
SEEDS = 5
PATIENCE_S = 900
# The rank alone: a launcher, and the shell that started it, have these words in theirs, too.
RANK = r"^(\S*/)?python[0-9.]* main\.py"
FROM = re.compile(r"going on from checkpoint \S*images-(\d+)\.pt")
PROGRESS = re.compile(r"progress: (\d+)/\d+ steps")


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


@pytest.fixture(autouse=True)
def _whole(lab):
    lab.call("up")


@pytest.fixture
def tell(request):
    """Say at once what was found, since it may be hours until the end."""
    plugins = request.config.pluginmanager
    reporter = plugins.get_plugin("terminalreporter")
    capture = plugins.get_plugin("capturemanager")

    def write(*found):
        with capture.global_and_fixture_disabled():
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


@dataclass
class Begun:
    """An elastic training that is at work; what it says is read, so that it never waits for us."""

    process: subprocess.Popen
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    said: tuple = ()

    def read(self):
        self.said = self.process.communicate()
        self.seconds = time.monotonic() - self.began


@contextmanager
def begun(cluster, **settings):
    """Begin an elastic training; it is over when the body is."""
    chosen = words(**{"checkpoint_steps": EVERY, **settings})
    command = ("run", cluster.name, "imagenet", "--elastic", "--min", "1", "--json", *chosen)
    process = cluster.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    training = Begun(process)
    reader = threading.Thread(target=training.read, daemon=True)
    reader.start()
    try:
        yield training
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            reader.join(120)
            process.kill()
        reader.join(10)


def ended(training):
    """Wait for a training; returns its document."""
    training.process.wait(PATIENCE_S)
    while not training.seconds:
        time.sleep(0.1)
    out, said = training.said
    assert training.process.returncode == 0, out + said
    return json.loads(out)


def container(cluster, node):
    wanted = ["--filter", f"label=gpubed.name={cluster.name}", "--filter", f"name={node}$"]
    listed = subprocess.run(
        ["docker", "ps", "-q", *wanted], capture_output=True, text=True, check=True
    )
    return listed.stdout.strip()


def signalled(cluster, node, process, name):
    """Send a signal to a training's rank on a node, as soon as there is one."""
    command = ["docker", "exec", container(cluster, node), "pkill", f"-{name}", "-f", RANK]
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if process.poll() is not None:
            return
        time.sleep(0.5)


def disturb(cluster, fault, node, seconds):
    """Break a node for a while, then put it right."""
    undo = breaking.broken(cluster, fault, node)
    time.sleep(seconds)
    if undo:
        breaking.run(undo)
    else:
        cluster.call("up", "-y")


def break_something(cluster, fault, node, process):
    """Play a fault, and put it right where it does not end by itself."""
    if fault in RANKS:
        signalled(cluster, node, process, RANKS[fault])
        return
    disturb(cluster, fault, node, seconds=20)


def seen(cluster, leg, batch):
    """Return the images that a run began with, those it told of last, and those of each step.

    None of a run that came to no step: it made nothing twice.
    """
    log = cluster.state / "runs" / leg["run_id"] / "output.log"
    text = log.read_text() if leg["run_id"] and log.exists() else ""
    each, steps, before = len(leg["nodes"]) * batch, PROGRESS.findall(text), FROM.findall(text)
    if not (steps or before):
        return None
    first = int(before[0]) if before else 0
    return first, int(steps[-1]) * each if steps else first, each


def repeated(cluster, legs, batch):
    """Return how many steps were made twice at most, as far as ranks told of them.

    Of images, since steps are others on fewer ranks.
    """
    found = 0
    runs = [one for leg in legs if (one := seen(cluster, leg, batch))]
    for (_, last, each), (first, _, _) in itertools.pairwise(runs):
        found = max(found, math.ceil((last - first) / each))
    return found


def test_a_training_outlives_each_of_many_faults(lab, tell):
    settings = {**NOISE, "steps": STEPS}
    plain = [
        train(lab, "--elastic", "--min", "1", **settings, checkpoint_steps=EVERY)[1]
        for _ in range(4)
    ][1:]
    kinds = [*RANKS, *NODES]
    played = endurance.known("faults", {"played": []})["played"] if FIRST else []
    played = [one for one in played if one["number"] < FIRST]
    for number in range(FIRST, FIRST + FAULTS):
        # The same, whatever was played before.
        draw = random.Random(f"{SEED} {number}")
        fault, node = kinds[number % len(kinds)], f"node-{number // len(kinds) % 3}"
        with begun(lab, **settings) as training:
            moment = draw.uniform(0, 0.9 * min(plain))
            time.sleep(moment)
            break_something(lab, fault, node, training.process)
            told = ended(training)
        assert told["status"] == "ok"
        again = repeated(lab, told["legs"], NOISE["batch_size"])
        one = {"number": number, "fault": fault, "node": node, "at_s": moment}
        one |= {"seconds": training.seconds, "legs": len(told["legs"]), "repeated": again}
        played.append(one)
        tell(one)
        assert again <= EVERY + 1, told["legs"]
        lab.call("up")
        assert lab.json("status")["state"] == "ready"
        found = {"steps": STEPS, "every": EVERY, "undisturbed_s": plain, "played": played}
        kept.keep(endurance.KEPT, faults=found)


def wait_for_step(cluster, training, step):
    """Wait until a training that has just begun tells of a step."""
    deadline = time.monotonic() + PATIENCE_S
    began = time.time() - (time.monotonic() - training.began)
    while True:
        logs = cluster.state.glob("runs/*-imagenet/output.log")
        mine = [it for it in logs if it.parent.stat().st_ctime >= began]
        if any(int(one) >= step for it in mine for one in PROGRESS.findall(it.read_text())):
            return
        assert training.process.poll() is None, training.said
        assert time.monotonic() < deadline
        time.sleep(0.5)


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
        with begun(lab, **settings, seed=seed) as training:
            wait_for_step(lab, training, 2 * EVERY)
            for fault, node in (("remove-node", "node-2"), ("stop-service", "node-0")):
                disturb(lab, fault, node, seconds=1)
            told = ended(training)
        assert len(told["legs"]) > 1, "nothing happened to it"
        assert repeated(lab, told["legs"], settings["batch_size"]) <= EVERY + 1
        found["disturbed"].append(told["metrics"]["val_accuracy"])
        tell(found)
    kept.keep(endurance.KEPT, accuracy=found)
    difference = intervals.difference(found["disturbed"], found["undisturbed"])
    # On fewer ranks, batches are smaller: it may well learn more.
    assert difference.high >= 0
    assert difference.value > -0.03


def test_checkpoints_and_elasticity_cost_little(lab, tell):
    steps, every = 150, 50
    ways = {
        "plain": ((), {}),
        "checkpoints": ((), {"checkpoint_steps": every}),
        "elastic, with checkpoints": (("--elastic",), {"checkpoint_steps": every}),
    }
    draw, seconds = random.Random(SEED), {name: [] for name in ways}
    train(lab, **NOISE, steps=STEPS)  # the first one reads everything from the disk
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


def status(cluster):
    """Return the document of `status`, whatever it is."""
    return json.loads(cluster.call("status", "--json", rc=None).stdout)


def wait_until_repaired(cluster, log, so_many, watch, said):
    """Wait until a watch has told of so many repairs, and all is ready.

    One whose verification fails, as on a busy machine, has repaired all the same.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert watch.poll() is None, said.read_text()
        found = status(cluster)
        is_whole = found.get("state") == "ready" and all(
            it["state"] == "ready" for it in found["nodes"]
        )
        # A repair that is being verified still has the cluster.
        is_free = runlock.holder(cluster.state) is None
        if is_whole and is_free and sum(map(len, repairs(log))) >= so_many:
            return
        assert time.monotonic() < deadline, (found, log.read_text())
        time.sleep(5)


def events(log):
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def repairs(log):
    """Return the repairs that came to their end, and those that failed."""
    told = [one for one in events(log) if one["event"] == "repair"]
    done = [one for one in told if one["outcome"].startswith("repaired")]
    return done, [one for one in told if one not in done]


def test_a_watch_keeps_a_cluster_ready_under_faults(lab, tmp_path, tell):
    kinds = ["kill-node", "stop-sshd", "cut-experiment", "cut-control", "stop-service"]
    draw, faults = random.Random(SEED), []
    lab.node("head", "echo kept | sudo tee /shared/kept > /dev/null")
    lab.node("node-2", "echo mine | sudo tee /var/lib/mine > /dev/null")
    sums = "cd /shared/datasets/written && find . -type f | sort | xargs sha256sum | sha256sum"
    data, nodes = lab.node("head", sums), [it["id"] for it in status(lab)["nodes"]]
    said, told = (tmp_path / name for name in ("said", "told.jsonl"))
    with told.open("w") as out, said.open("w") as errors:
        command = ("watch", lab.name, "--every", "20s", "--repairs", "1000", "--json")
        watch = lab.start(*command, stdout=out, stderr=errors)
        try:
            until = time.monotonic() + WATCH_S
            while time.monotonic() < until:
                fault = draw.choice(kinds)
                node = "node-0" if fault == "stop-service" else f"node-{draw.randrange(3)}"
                had = sum(map(len, repairs(told)))
                breaking.broken(lab, fault, node)
                faults.append(fault)
                tell(f"{fault} on {node}")
                time.sleep(draw.uniform(60, 240))
                wait_until_repaired(lab, told, had + 1, watch, said)
        finally:
            watch.send_signal(signal.SIGINT)
            watch.wait(120)
    assert watch.returncode == 130, said.read_text()
    found = events(told)
    tell(*found)
    done, failed = repairs(told)
    assert all(event["why"] for event in found)
    assert not [one for one in found if one["event"] in ("person", "left", "spent")]
    assert len(done) + len(failed) >= len(faults)
    assert lab.node("head", "cat /shared/kept") == "kept\n"
    assert lab.node("node-2", "cat /var/lib/mine") == "mine\n"
    assert lab.node("head", sums) == data
    assert [it["id"] for it in status(lab)["nodes"]] == nodes, "a node was made anew"
    lab.call("audit")
    counts = {"repairs": len(done), "failed": len(failed)}
    kept.keep(endurance.KEPT, watch={"seconds": WATCH_S, "faults": faults, **counts})
