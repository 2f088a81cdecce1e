"""The whole way of a GPU cluster, on nodes that pretend to have GPUs: from `check` to `down`.

Nothing computes on a GPU here, and nothing may say that it did.
"""

import json
import os
import re
import time

import pytest

from support import gpu_results
from support.cluster import Cluster, labelled, unique
from support.containers import load
from support.gpu_cluster import (
    SERVICES,
    checks,
    group,
    model_of,
    pin_driver,
    standing,
    without_gpus,
)

# Roles for GPUs download gigabytes: on a busy machine the first test of a way, `up`, is a long one.
pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(5400)]

SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}


def way(id_, recipe, *groups, runtime="container", marks=(pytest.mark.simulated,)):
    return pytest.param((recipe, groups, runtime), id=id_, marks=marks)


# The first one is part of `make test-all`.
WAYS = [
    way("cuda13", "cuda13", group("A100-SXM4-80GB", 2, count=2), marks=()),
    way("cuda12", "cuda12", group("V100-SXM2-16GB", 1, count=2)),
    way("cuda12-13", "cuda12", group("P100-PCIE-16GB", 2, count=2, image="debian-13")),
    way("nvswitch", "cuda13", group("H100-SXM5-80GB", 8, count=2, image="debian-13")),
    way("more", "cuda13", group("A100-SXM4-80GB", 2, count=2, has=4)),
    way(
        "mixed",
        "cuda13",
        without_gpus("login"),
        group("T4", 1, name="small"),
        group("H200-SXM5-141GB", 8, name="large"),
    ),
]


@pytest.fixture(scope="module", params=WAYS)
def cluster(request, docker, tmp_path_factory):
    recipe, groups, runtime = request.param
    made = Cluster(
        tmp_path_factory.mktemp("gpu"),
        unique("gpu"),
        backend={"type": "local", "runtime": runtime},
        nodes=list(groups),
        recipe=recipe,
        services=SERVICES,
    )
    started, failed = time.monotonic(), request.session.testsfailed
    with standing(made):
        yield made
    assert labelled(made.name) == []
    if os.environ.get("GPUBED_KEEP"):
        passed, seconds = request.session.testsfailed == failed, round(time.monotonic() - started)
        for one in with_gpus(made):
            what = gpu_results.Cluster(model_of(one), recipe, one["image"], "simulated")
            gpu_results.keep(what, passed=passed, seconds=seconds)


def with_gpus(cluster):
    return [one for one in cluster.spec["nodes"] if one["gpus"]]


def asked(cluster):
    """Return how many GPUs each node was to have, if any."""
    return {f"{g['name']}-{i}": g["gpus"] for g in with_gpus(cluster) for i in range(g["count"])}


def hardware(cluster):
    nodes = {n["name"]: n["hardware"] for n in cluster.json("status")["nodes"]}
    return {name: nodes[name] for name in asked(cluster)}


def drivers(cluster):
    return {name: found["driver"] for name, found in hardware(cluster).items()}


def test_up_ends_in_a_verified_cluster(cluster):
    found = cluster.first_up["verification"]
    assert found["failed"] == 0
    assert found["simulated"] > 0
    simulated = {c["id"] for c in checks(cluster.first_up) if c["result"] == "simulated"}
    assert {"gpu.count", "gpu.driver", "gpu.compute", "gpu.memory"} <= simulated


def test_no_check_of_a_gpu_passes(cluster):
    about = [c for c in checks(cluster.first_up) if re.search("gpu|recipe.driver", c["id"])]
    assert about
    assert {c["result"] for c in about} <= {"simulated", "skip"}


def test_status_says_that_the_gpus_are_pretended(cluster):
    assert all(found["simulated"] for found in hardware(cluster).values())
    assert "simulated" in cluster.call("status").stdout


@pytest.mark.simulated
def test_doctor_and_the_report_of_the_gpus_say_so_too(cluster, tmp_path):
    looked = {finding["id"] for finding in cluster.json("doctor")["findings"]}
    assert {f"gpu.{node}.simulated" for node in asked(cluster)} <= looked
    file = tmp_path / "gpus.json"
    cluster.call("verify", "--gpu-report", str(file))
    told = {node["simulated"] for node in json.loads(file.read_text())["nodes"]}
    assert told == {model_of(one) for one in with_gpus(cluster)}


def test_nothing_is_left_to_do(cluster):
    assert "nothing to change" in cluster.call("up").stderr


def test_horovod_was_built_for_nccl(cluster):
    said = cluster.node("head", "gpubed-rank horovodrun --check-build")
    assert "[X] NCCL" in said


def test_a_job_has_a_rank_per_gpu_and_says_that_no_gpu_computed(cluster):
    result = cluster.json("run", "digits", "--set", "epochs=20")
    assert (result["status"], result["world_size"]) == ("ok", sum(asked(cluster).values()))
    assert result["simulated"] is True
    assert result["device"].startswith("cpu (simulated ")


@pytest.mark.long  # an image of its own; make test-gpu
def test_a_job_in_containers_sees_the_gpus_that_were_asked_for(cluster, rank_image):
    image, archive = rank_image(SUITES[cluster.spec["nodes"][0]["image"]])
    load(cluster, archive)
    result = cluster.json("run", "digits", "--set", "epochs=20", "--container", image)
    assert (result["status"], result["world_size"]) == ("ok", sum(asked(cluster).values()))
    assert result["simulated"] is True


@pytest.mark.simulated
def test_a_job_under_slurm_gets_its_gpus(cluster):
    result = cluster.json("run", "digits", "--set", "epochs=20", "--launcher", "slurm")
    assert (result["status"], result["world_size"]) == ("ok", sum(asked(cluster).values()))
    offered = cluster.node("head", "sinfo --Node --noheader --format='%N %G'")
    counts = {
        row.split()[0]: re.search(r"gpu:(?:\S+?:)?(\d+)", row) for row in offered.splitlines()
    }
    assert {name: int(found[1]) for name, found in counts.items() if found} == asked(cluster)


@pytest.mark.simulated
def test_a_researcher_has_gpus_in_a_job_and_not_in_a_login(cluster):
    """No driver answers: what may be opened says that there is no such device."""
    if cluster.node("head", "hostname").strip() not in asked(cluster):
        pytest.skip("the head has no GPU")
    opens = "dd if=/dev/nvidia0 of=/dev/null count=1 2>&1 | head -n 1"
    desk, keys = "/root/desk", "/etc/gpubed/slurm/keys/alice"
    cluster.node(
        "head", f"sudo sh -c \"ssh-keygen -q -t ed25519 -N '' -f {desk} && cp {desk}.pub {keys}\""
    )
    ssh = f"sudo ssh -F none -i {desk} -o BatchMode=yes alice@$(hostname)"
    assert "Operation not permitted" in cluster.node("head", f"{ssh} '{opens}'")
    job = f"srun -w $(hostname) --gpus=1 sh -c '{opens}'"
    assert "No such device or address" in cluster.node("head", f"cd /tmp && sudo -u alice {job}")
    assert "No such device or address" in cluster.node("head", opens), "the cluster's own account"


@pytest.mark.simulated  # each version is a configuration and a verification of its own
def test_a_driver_that_does_not_build_is_taken_back(cluster):
    """Also where the one before is of another package source."""
    before = drivers(cluster)
    with pytest.raises(AssertionError, match=r"580\.70\.99 could not be installed"):
        pin_driver(cluster, "580.70.99")
    pin_driver(cluster, None)
    assert drivers(cluster) == before


@pytest.mark.simulated
def test_a_driver_is_rolled_back_and_upgraded(cluster):
    for version in ("580.65.06", "580.82.07"):
        before = drivers(cluster)
        up = pin_driver(cluster, version)
        assert set(drivers(cluster).values()) == {version}
        assert version not in before.values()
        assert up["verification"]["failed"] == 0


PROMETHEUS = "http://127.0.0.1:9090/api/v1"
FAULTS = {
    "fallen-off-bus": "fallen off the bus|is lost|Unable to determine",
    "xid-79": "Xid 79",
    "ecc-double-bit": "ECC|Xid 48",
    "requires-reset": "[Rr]equires reset",
    "nvlink-down": "NVLink|Xid 74",
    "throttled": "slowdown|throttl",
    "library-mismatch": "mismatch",
    "kernel-update": "module",
}


def look_twice(cluster, node):
    cluster.node(node, "sudo gpubed-health watch; sudo gpubed-health watch")


def states(cluster, *words, rc=0):
    return {n["name"]: n for n in cluster.json("health", *words, rc=rc)["nodes"]}


# A fault of the hardware and one of the software for `make test-all`, and on every way.
SHORT = {"fallen-off-bus", "library-mismatch"}
LONG = [pytest.param(name, marks=pytest.mark.simulated) for name in FAULTS if name not in SHORT]
# The others where GPUs and drivers differ most: data centre GPUs with NVLink, and an NVSwitch.
THOROUGH = {"cuda13", "nvswitch"}


@pytest.mark.parametrize("fault", [*sorted(SHORT), *LONG])
def test_a_gpu_that_fails_is_found_left_out_and_requalified(cluster, fault, request):
    node = list(asked(cluster))[-1]
    if fault not in SHORT and not THOROUGH & set(request.node.callspec.id.split("-")):
        pytest.skip(f"played on {' and '.join(sorted(THOROUGH))}")
    if fault == "nvlink-down" and not has_nvlink(cluster, node):
        pytest.skip("these GPUs have no NVLink")
    cluster.node(node, f"sudo gpubed-simulate fault {fault}")
    try:
        look_twice(cluster, node)
        found = states(cluster, rc=1)[node]
        assert found["state"] == "quarantined"
        reason = found["quarantine"]["reason"]
        assert re.search(FAULTS[fault], reason), reason
        shown = {n["name"]: n for n in cluster.json("status", rc=1)["nodes"]}[node]
        assert shown["state"] == "quarantined"
        assert re.search(FAULTS[fault], shown["reason"])
        assert alarmed(cluster, node)
        result = cluster.json("run", "digits", "--set", "epochs=2")
        assert list(result["left_out"]) == [node]
        assert states(cluster, "--requalify", node, rc=1)[node]["state"] == "quarantined"
    finally:
        cluster.node(node, "sudo gpubed-simulate heal")
    assert states(cluster, "--requalify", node)[node]["state"] == "well"


def alarmed(cluster, node):
    """Wait until Prometheus knows of a quarantine; tell whether it came to that."""
    query = f'gpubed_node_quarantined{{node="{node}"}} == 1'
    ask = f"curl -sSG --noproxy '*' {PROMETHEUS}/query --data-urlencode 'query={query}'"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if json.loads(cluster.node("head", ask))["data"]["result"]:
            return True
        time.sleep(2)
    return False


def has_nvlink(cluster, node):
    return "NV" in cluster.node(node, "nvidia-smi topo -m | grep ^GPU")
