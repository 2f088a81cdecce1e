"""A training outlives a frozen node and a killed rank, as docs/how-to/outlive-nodes.md says."""

import json
import signal
import subprocess
import time

import pytest

from support.cluster import Cluster, unique

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.faults]
# More steps than there is time for: how fast one is depends on the machine.
STEPS, KEEP_EVERY, PATIENCE_S = 100_000, 10, 300


def container(cluster, name):
    wanted = ["--filter", f"label=gpubed.name={cluster.name}", "--filter", f"name={name}$"]
    listed = subprocess.run(
        ["docker", "ps", "-q", *wanted], capture_output=True, text=True, check=True
    )
    [found] = listed.stdout.split()
    return found


def docker(*words):
    subprocess.run(["docker", *words], capture_output=True, check=True)


def wait_until(training, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert training.poll() is None, "it ended"
        assert time.monotonic() < deadline
        time.sleep(0.5)


def steps_of(cluster, number):
    """Return how many steps the training's run of that number has said it made; 0 without one."""
    folders = sorted(cluster.state.glob("runs/*-imagenet"))
    if len(folders) <= number or not (log := folders[number] / "output.log").exists():
        return 0
    lines = [line for line in log.read_text().splitlines() if "progress: " in line]
    return int(lines[-1].partition("progress: ")[2].partition("/")[0]) if lines else 0


def records(cluster):
    """Return the records of the training's runs, in their order."""
    return [
        json.loads(path.read_text())
        for path in sorted(cluster.state.glob("runs/*-imagenet/run.json"))
    ]


def hosts_of(record):
    return [host["name"] for host in record["origin"]["hosts"]]


@pytest.fixture
def pair(docker, tmp_path):
    """Two nodes that jobs run on."""
    nodes = [{"name": "node", "count": 2, "machine": {"cpus": 2, "memory": "4 GiB"}}]
    made = Cluster(tmp_path, unique("elastic"), nodes=nodes, services={})
    try:
        made.call("up")
        yield made
    finally:
        made.call("down", "-y")


@pytest.fixture
def training(pair, tmp_path):
    """A training on both nodes."""
    words = ["model=squeezenet1_1", "image_size=64", "batch_size=16", "learning_rate=0.001"]
    words += [f"steps={STEPS}", f"checkpoint_steps={KEEP_EVERY}"]
    settings = [word for setting in words for word in ("--set", setting)]
    said = (tmp_path / "said.txt").open("w")
    pipes = {"stdout": subprocess.PIPE, "stderr": said}
    process = pair.start("run", pair.name, "imagenet", "--elastic", "--json", *settings, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_node_that_freezes_and_a_rank_that_is_killed_cost_no_more_than_an_interval(
    pair, training
):
    wait_until(training, lambda: steps_of(pair, 0) > 2 * KEEP_EVERY)
    frozen = container(pair, "node-1")
    docker("pause", frozen)
    try:
        wait_until(training, lambda: steps_of(pair, 1) > 0)
    finally:
        docker("unpause", frozen)
    wait_until(training, lambda: steps_of(pair, 2) > KEEP_EVERY)
    docker("exec", container(pair, "node-1"), "pkill", "-KILL", "-f", "main.py")
    wait_until(training, lambda: steps_of(pair, 3) > 0)
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=60)
    assert training.returncode == 130
    first, without, joined, again = records(pair)
    assert [hosts_of(one) for one in (first, joined, again)] == [["node-0", "node-1"]] * 3
    assert hosts_of(without) == ["node-0"]
    assert "node-1 does not answer" in first["failures"][0]
    assert without["failures"] == ["node-1 is taken in"]
    before = [one["resumes"] for one in (without, joined, again)]
    assert before == [one["run_id"] for one in (first, without, joined)]
