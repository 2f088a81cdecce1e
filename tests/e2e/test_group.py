"""All services of a group on one cluster: the way of a newcomer, and nothing left afterwards."""

import re
import shutil

import pytest
import yaml

from support import howto, whole_host
from support.blocks import blocks
from support.cluster import ROOT, Cluster, unique
from support.neighbour import bridge_of
from support.outsider import outsider, scan

pytestmark = [
    pytest.mark.services,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.timeout(1800),
]
PAGE = "docs/tutorial/from-data-to-answers.md"
SCRIPTS = PAGE.removesuffix(".md")
SERVICES = {
    **yaml.safe_load(blocks(PAGE)[0].above)["services"],
    "hub": {},
}
# Of these, the checks that must pass.
CHECKS = ("hub.", "tracking.", "streams.", "serving.", "slurm.", "firewall.")


@pytest.fixture(scope="module", params=["debian-12", "debian-13"])
def group(request, docker, tmp_path_factory):
    """A cluster that was up before it got the services, and what was on its head then."""
    machine = {"cpus": 2, "memory": "4 GiB"}
    nodes = [{"name": "node", "count": 3, "image": request.param, "machine": machine}]
    made = Cluster(tmp_path_factory.mktemp("group"), unique("group"), nodes=nodes)
    try:
        made.call("up")
        before = on_head(made)
        made.edit(lambda spec: spec["services"].update(SERVICES))
        made.call("up")
        yield made, before
    finally:
        made.call("down", "-y")


def on_head(cluster):
    return whole_host.state(lambda program: cluster.node("head", "sudo python3 -", program))


def test_every_check_passes(group):
    cluster, _ = group
    checks = cluster.json("verify")["verification"]["checks"]
    judged = [check for check in checks if check["id"].startswith(CHECKS)]
    assert {check["id"].partition(".")[0] + "." for check in judged} == set(CHECKS)
    assert [c for c in judged if c["result"] not in ("pass", "skip")] == []
    assert "nothing to change" in cluster.call("up").stderr


def test_the_tutorial_does_what_it_says(group, tmp_path):
    cluster, _ = group
    folder = tmp_path / "here"
    shutil.copytree(ROOT / SCRIPTS, folder)
    (folder / SCRIPTS).parent.mkdir(parents=True)
    (folder / SCRIPTS).symlink_to(folder)  # to where the page goes
    said = howto.follow(cluster, f"../../{PAGE}", "lab", folder)
    assert "it is a 0" in said
    (run,) = cluster.state.glob("runs/*-answers")
    assert "of 1797 digits are right (9" in (run / "output.log").read_text()


def test_only_declared_ports_answer(group):
    cluster, _ = group
    status = cluster.json("status")
    nodes = {node["name"]: node["control_address"] for node in status["nodes"]}
    # SSH; JupyterLab, hub, tracking, serving. Streams listen on the experiment network.
    declared = {22, 8888, 8000, 5000, 8443}
    ports = range(1, 32768)
    assert scan(None, nodes["node-0"], ports) == declared
    assert scan(None, nodes["node-1"], ports) == {22}
    with outsider(bridge_of(nodes["node-0"])) as namespace:
        assert scan(namespace, nodes["node-0"], ports) == {22}


def test_without_slurms_database_jobs_go_on_and_verify_says_why(group):
    cluster, _ = group
    cluster.node("head", "sudo systemctl stop mariadb")
    try:
        checks = cluster.json("verify", rc=1)["verification"]["checks"]
        (failed,) = [check for check in checks if check["result"] == "fail"]
        assert failed["id"] == "slurm.accounting"
        assert "systemctl status slurmdbd mariadb" in failed["reason"]
        assert cluster.node("head", "srun hostname").startswith("node-")
    finally:
        cluster.node("head", "sudo systemctl start mariadb")


def test_switched_off_it_leaves_nothing(group):
    cluster, before = group
    cluster.edit(
        lambda spec: [spec["services"].pop(name) for name in SERVICES if name != "jupyterlab"]
    )
    cluster.call("up")
    may_stay = [
        left["lines"]
        for role in (*SERVICES, "base")
        if (goes := ROOT / f"roles/{role}/molecule/goes.yml").exists()
        for left in yaml.safe_load(goes.read_text()).get("left", ())
    ]
    found = whole_host.differences(before, on_head(cluster))
    left = [line for line in found if not any(re.search(each, line) for each in may_stay)]
    assert not left, "\n".join(left[:50])
    shared = cluster.node("head", "ls /shared").split()
    assert {"tracking", "datasets"} <= set(shared)
