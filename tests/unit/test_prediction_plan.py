"""`gpubed plan` and `gpubed resources` of a cluster that names its experiment."""

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.paths import Project
from gpubed.prediction import probed
from gpubed.prediction.probed import Probed, Way
from gpubed.testbeds.base import Offer, Testbed
from gpubed.testbeds.specification import load_plan
from support.cluster import Cluster
from support.imagenet_runs import ran
from support.samples import sample_allocation

pytestmark = pytest.mark.process
GPUS = [{"name": "gpu", "count": 4, "gpus": 1, "simulate": "V100-SXM2-16GB"}]
RESNET = {"model": "resnet50", "batch": 64}


@pytest.fixture
def plan(tmp_path):
    def call(experiment):
        given = {"nodes": GPUS, "recipe": "cuda12", "configure": False}
        given["networks"] = {"experiment": {"rate": "10 Gbit/s"}}
        if experiment:
            given["experiment"] = experiment
        cluster = Cluster(tmp_path, "planned", **given)
        words = ("plan", "--engine", "embedded")
        return cluster.call(*words).stdout, cluster.json(*words)["prediction"]

    return call


def test_the_scaling_of_the_experiment_is_printed_with_its_interval(plan):
    said, told = plan(RESNET)
    assert "of: resnet50, fp32, 1 x v100 per node" in said
    assert [row["nodes"] for row in told["scaling"]] == [1, 2, 4]
    whole = told["scaling"][-1]
    assert whole["low"] < whole["images_per_s"] < whole["high"]
    assert whole["node_hours"] == pytest.approx(4 * 90 * 1281167 / whole["images_per_s"] / 3600)
    assert f"{whole['node_hours']:,.0f}" in said
    for row in told["scaling"]:
        assert f"{row['efficiency']:.0%}" in said
    for words in ("what dominates: ", "how sure: 90 % interval", "what would change it: "):
        assert words in said


def test_fewer_nodes_that_reach_the_target_are_named_as_cheaper(plan):
    said, told = plan({**RESNET, "target": 300})
    best = told["answer"]["best"]
    assert best["nodes"] < 4
    assert best["images_per_s"] >= 300
    assert best["node_hours"] < told["scaling"][-1]["node_hours"]
    assert f"300 images/s at the least node-hours: {best['nodes']} node" in said


def test_a_plan_of_a_probed_cluster_is_predicted_by_its_links(tmp_path):
    given = {"experiment": {"rate": "10 Gbit/s"}}
    training = {"model": "vgg16", "batch": 32}
    lab = Cluster(
        tmp_path,
        "probed",
        nodes=GPUS,
        recipe="cuda12",
        configure=False,
        networks=given,
        experiment=training,
    )
    paths = Project(tmp_path).cluster("probed")
    granted = sample_allocation(load_plan(paths.spec))
    paths.state.mkdir(parents=True)
    paths.allocation.write_text(granted.model_dump_json())

    def images():
        return lab.json("plan", "--engine", "embedded")["prediction"]["scaling"][-1]["images_per_s"]

    shipped = images()
    way = Way(bus_bps=1e9, step_s=1e-4)
    probed.write(
        paths,
        Probed(measured=datetime.now(UTC), uuid=granted.uuid, link_bps=10e9, ways={"tcp": way}),
    )
    assert images() < shipped / 2


def test_without_an_experiment_nothing_is_predicted(plan):
    said, told = plan(None)
    assert told is None
    assert "predict" not in said


@pytest.mark.parametrize(
    ("experiment", "why"),
    [
        ({"model": "resnet50", "gpu": "v1000"}, "no GPU 'v1000'; near it are v100"),
        ({"model": "resnot50"}, "no 'resnot50'; near it are resnet50"),
        ({"model": "resnet50", "gpu": "cpu"}, "imagenet --nodes 1 --set model=resnet50"),
    ],
)
def test_why_nothing_is_predicted_is_one_line(plan, experiment, why):
    said, told = plan(experiment)
    assert told is None
    [line] = [line for line in said.splitlines() if "predict" in line]
    assert line.startswith("the experiment is not predicted: ")
    assert why in line


def test_the_rate_of_cpus_is_that_of_an_earlier_run_on_one_rank(tmp_path):
    cluster = Cluster(tmp_path, "planned", configure=False, experiment={"model": "resnet18"})
    ran(cluster.state / "runs", 7.5, model="resnet18")
    told = cluster.json("plan", "--engine", "embedded")["prediction"]
    assert told["scaling"][0]["images_per_s"] == pytest.approx(7.5)
    assert told["scaling"][0]["gpu"] == "cpu"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("batch", 0, "must be at least 1"),
        ("precision", "fp8", "allowed: 'fp32', 'amp' or 'bf16'"),
        ("modle", "resnet50", "did you mean 'model'"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(tmp_path, key, value, why):
    cluster = Cluster(tmp_path, "planned", experiment={"model": "resnet50", key: value})
    said = cluster.call("check", rc=2)
    assert f"experiment.{key}" in said.stdout + said.stderr
    assert why in said.stdout + said.stderr


@pytest.fixture
def resources(tmp_path, monkeypatch):
    """The verb. STAND-IN: what the testbed has; the local one does not tell."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    offers = [
        Offer("cpu-only", 4, 4, 0),
        Offer("old", 4, 4, 1, "Tesla K80"),
        Offer("new", 4, 4, 1, "NVIDIA A100-SXM4-40GB"),
        Offer("taken", 4, 0, 1, "NVIDIA H200"),
        Offer("unknown", 4, 4, 1, "NVIDIA Q9000"),
    ]
    monkeypatch.setattr(Testbed, "resources", lambda *_: list(offers))
    Cluster(tmp_path, "own", nodes=[{"count": 4}], networks={"experiment": {"rate": "10 Gbit/s"}})

    def call(*words):
        return CliRunner().invoke(cli.build(), ["resources", "own", *words], standalone_mode=False)

    return call


def test_free_machines_are_ranked_by_the_predicted_rate(resources):
    told = json.loads(resources("--for", "resnet50:64", "--json").stdout)["offers"]
    assert [offer["name"] for offer in told[:2]] == ["new", "old"]
    assert told[0]["prediction"]["batch"] == 64
    assert told[0]["prediction"]["nodes"] == 4
    assert [offer["prediction"] for offer in told[2:]] == [None, None, None]
    lines = resources("--for", "resnet50:64").stdout.splitlines()
    row = next(line for line in lines if line.split()[:1] == ["new"])
    assert " on 4 (" in row


def test_without_an_experiment_the_order_is_the_testbeds(resources):
    told = json.loads(resources("--json").stdout)["offers"]
    assert [offer["name"] for offer in told] == ["cpu-only", "old", "new", "taken", "unknown"]
    assert "images/s" not in resources().stdout


@pytest.mark.parametrize("given", [":64", "resnet50:0", "resnet50:many"])
def test_a_training_that_is_none_is_refused(resources, given):
    assert "is not MODEL:BATCH" in str(resources("--for", given).exception)
