"""The experiment that gpubed is for, on three nodes of this machine: `make test-experiment`.

Two hours. What is found is kept, becomes docs/reference/experiment.md, and its report is
photographed. A repetition takes the kept report, so it may come on another day:
`-k repeated`.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter

import pytest
import yaml

from support import browser, experiment, kept, written
from support.cluster import BIN, Cluster, labelled, unique

pytestmark = [
    pytest.mark.experiment,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.timeout(3 * 3600),
]
SETTINGS = {
    "model": "resnet18",
    "image_size": 32,
    "dataset": "digits",
    "loader_threads": 1,
    "steps": 8,
    "warmup_steps": 2,
}
MATRIX = {
    "factors": {"nodes": [1, 2, 3], "batch_size": [32, 64, 96], "rate": ["100M", "200M"]},
    "settings": SETTINGS,
    "repeat": 3,
}
RUNS = 54
RINGS = {
    "factors": {"nodes": [2, 3], "rate": ["100M", "200M"]},
    "settings": {**SETTINGS, "batch_size": 32, "overlap": False},
    "repeat": 3,
}
FRAMEWORKS = {
    "factors": {"framework": ["ddp", "horovod"], "nodes": [3], "rate": ["200M"]},
    "settings": {**SETTINGS, "batch_size": 32},
    "repeat": 6,
}
SEED = 7


@pytest.fixture(scope="module")
def lab(request, docker, tmp_path_factory):
    """Three nodes with the images as shards on each of them.

    A test with a parameter has others: those before are gone first, and take no processor.
    """
    root = tmp_path_factory.mktemp("experiment")
    made = Cluster(root, unique("experiment"), storage={"scratch": {}})
    try:
        made.call("up")
        written.images(made, "written")
        prepared = ("source=written", "dataset=digits", "size=40", "shard_mib=1")
        packed = made.json("run", "prepare", *(it for one in prepared for it in ("--set", one)))
        assert packed["metrics"]["images"] == written.COUNT
        assert made.json("run", "stage", "--set", "dataset=digits")["metrics"]["wrong_files"] == 0
        yield made
    finally:
        made.call("down", "-y", rc=None)
    assert labelled(made.name) == []


def write(cluster, name, content):
    path = cluster.root / "campaigns" / f"{name}.yml"
    path.parent.mkdir(exist_ok=True)
    whole = {"schema": "gpubed/campaign-file/1", "job": "imagenet", **content}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))


def points(cluster, name):
    folder = cluster.state / "campaigns" / name / "points"
    return {path.name: path.read_bytes() for path in folder.glob("*.json")}


def ended_by(cluster, name, number, count, delay):
    """Start a campaign, and end it some seconds after it has so many points."""
    process = subprocess.Popen(
        [str(BIN / "gpubed"), "bench", cluster.name, name],
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while len(points(cluster, name)) < count:
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.5)
        time.sleep(delay)
        os.killpg(process.pid, number)
        return process.wait(120), points(cluster, name)
    finally:
        process.kill()
        process.wait()


def means(report):
    return [
        {**group["settings"], **{name: it["mean"] for name, it in group["metrics"].items() if it}}
        for group in report["groups"]
    ]


def reported(cluster, name):
    cluster.call("report", name, "--here")
    return json.loads((cluster.state / "campaigns" / name / "report/report.json").read_text())


def test_a_matrix_is_killed_twice_and_ends_with_each_point_once(lab):
    write(lab, "matrix", MATRIX)
    chance = random.Random(SEED)
    code, first = ended_by(lab, "matrix", signal.SIGINT, 7, chance.uniform(1, 15))
    assert code == 130
    code, second = ended_by(lab, "matrix", signal.SIGKILL, 15, chance.uniform(1, 15))
    assert code == -signal.SIGKILL
    assert first.items() <= second.items()
    told = lab.json("bench", "matrix")
    assert Counter(point["status"] for point in told["points"]) == {"ok": RUNS}
    last = points(lab, "matrix")
    assert len(last) == RUNS
    assert second.items() <= last.items()
    runs = [run for run in lab.json("runs", "--last", "1000")["runs"] if run["job"] == "imagenet"]
    assert sum(run["status"] == "ok" for run in runs) == RUNS, "one that ended well ran again"
    assert len(runs) <= RUNS + 2
    for point in told["points"]:
        metrics = point["metrics"]
        whole = sum(metrics[part] for part in experiment.PARTS)
        assert whole == pytest.approx(metrics["step_s"], rel=0.03)


def test_its_report_says_what_limits_and_can_be_seen(lab):
    report = reported(lab, "matrix")
    assert (report["failed"], report["missing"]) == ([], []), "it is not whole, so not kept"
    kept.keep(experiment.KEPT, **experiment.needed(report))
    assert "not known" not in {limit["limit"] for limit in report["limits"]}, "it was repeated"
    # Of 45 MB of gradients at 100 Mbit/s, whatever the processors that all nodes share do beside.
    slow = [one for one in report["limits"] if one["series"] == {"batch_size": 32, "rate": "100M"}]
    assert [one["cause"] for one in slow] == ["link"]
    if browser.program() is None:
        pytest.skip("no Chromium is here to photograph the report")
    with browser.started() as chromium:
        tab = chromium.new_page(viewport={"width": 1000, "height": 1400})
        tab.goto((lab.state / "campaigns/matrix/report/report.html").as_uri())
        tab.locator("figure svg").nth(3).wait_for()
        tab.screenshot(path=str(experiment.PICTURE))


def test_communication_that_nothing_hides_takes_what_the_link_needs(lab):
    write(lab, "rings", RINGS)
    lab.call("bench", "rings")
    found = []
    for one in means(reported(lab, "rings")):
        rate = {"100M": 100e6, "200M": 200e6}[one["rate"]]
        ring_s = experiment.ring_s(one["nodes"], one["gradient_bytes"], rate)
        measured_s = one["exposed_communication_s"]
        found.append(
            {"nodes": one["nodes"], "rate": one["rate"], "measured_s": measured_s, "ring_s": ring_s}
        )
    kept.keep(experiment.KEPT, rings=found)
    for one in found:
        assert one["measured_s"] == pytest.approx(one["ring_s"], rel=0.15)


def test_horovod_is_no_slower_than_ddp_by_more_than_chance(lab):
    write(lab, "frameworks", FRAMEWORKS)
    lab.call("bench", "frameworks")
    [one] = [it for it in reported(lab, "frameworks")["comparisons"] if it["factor"] == "framework"]
    assert (one["value"], one["against"]) == ("horovod", "ddp")
    made = {"nodes": 3, "rate": "200M", "runs": FRAMEWORKS["repeat"], "ratio": one["ratio"]}
    kept.keep(experiment.KEPT, frameworks=made)
    assert one["ratio"]["high"] >= 1


@pytest.mark.parametrize("lab", ["anew"], indirect=True)
def test_the_kept_report_is_repeated_on_a_cluster_made_anew(lab):
    told = lab.json("bench", "--repeat", str(experiment.KEPT))
    compared = told["comparisons"]
    assert len(compared) * MATRIX["repeat"] == RUNS
    assert all(one["chance"] for one in compared), "a point has nothing to be compared with"
    kept.keep(experiment.KEPT, repeated=compared)
    assert Counter(one["verdict"] for one in compared if one["chance"]["among"] <= 0.05) == {}
