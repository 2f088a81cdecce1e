"""What a user has after the first `up`."""

import json
import re
import subprocess
from pathlib import Path

import docker
import pytest

from gpubed.core.paths import assets
from gpubed.jobs import jobfile

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


RANKS_OF_ONE = Path(__file__).parents[1] / "support" / "ranks_of_one.py"


def container_ids(cluster):
    return {node["name"]: node["id"] for node in cluster.json("status")["nodes"]}


@pytest.mark.quick
def test_three_nodes_are_ready_and_verified(cluster):
    status = cluster.json("status")
    assert [node["state"] for node in status["nodes"]] == ["ready"] * 3
    assert [node["role"] for node in status["nodes"]] == ["head", "worker", "worker"]
    assert status["verification"]["failed"] == 0
    assert status["verification"]["passed"] >= 20
    skipped = [c for c in status["verification"]["checks"] if c["result"] == "skip"]
    assert skipped, "nodes without GPUs must skip the GPU checks"
    assert all(check["reason"] for check in skipped)


def test_up_names_its_phases_and_services(cluster):
    first = cluster.first_up
    assert {"base", "storage", "runtime", "services", "verify", "checks"} <= {
        phase["name"] for phase in first["phases"]
    }
    assert first["services"][0]["url"].startswith("https://")
    assert "token" not in json.dumps(first["services"])


def test_packages_are_those_of_the_node_image(cluster):
    where = "/shared/env/current/bin/python -c 'import torch; print(torch.__file__)'"
    assert cluster.node("node-1", where).startswith("/shared/env/current/lib/")
    assert cluster.node("node-1", f"readlink -f $({where})").startswith("/opt/gpubed/env/")


def test_root_of_a_node_changes_its_own_copy_of_the_packages(cluster):
    import_it = "/shared/env/current/bin/python -c 'import torch; print(torch.__file__)'"
    file = cluster.node("node-1", f"readlink -f $({import_it})").strip()
    assert cluster.node("node-1", f"find {Path(file).parents[4]} -writable ! -type l") == ""
    machine = docker.from_env()
    image = machine.containers.get(container_ids(cluster)["node-1"]).image
    try:
        cluster.node("node-1", f"sudo sh -c 'echo changed = True >>{file}'")
        assert "changed" in cluster.node("node-1", f"tail --lines=1 {file}")
        assert "changed" not in cluster.node("node-2", f"tail --lines=1 {file}")
        later = machine.containers.run(image, ["tail", "--lines=1", file], remove=True)
        assert b"changed" not in later
    finally:
        cluster.node("node-1", f"sudo sed -i '/^changed = True$/d' {file}")


def test_an_unchanged_up_changes_nothing_and_runs_no_ansible(cluster):
    before = container_ids(cluster)
    logs = set((cluster.state / "logs").glob("*-ansible.log"))
    done = cluster.call("up")
    assert "nothing to change" in done.stderr
    assert set((cluster.state / "logs").glob("*-ansible.log")) == logs
    assert container_ids(cluster) == before
    assert cluster.json("plan")["changes"] == []


@pytest.mark.quick
def test_digits_learns_on_all_nodes(cluster):
    result = cluster.json("run", "digits")
    assert result["status"] == "ok"
    assert result["world_size"] == 3
    assert result["metrics"]["test_accuracy"] >= 0.97
    assert result["test_accuracy"] == result["metrics"]["test_accuracy"]
    assert result["metrics"]["images_per_s"] > 0


# The most ranks in each run of all tests: who learns too slowly, does so there.
RANKS = [10, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, 2, 3))]


@pytest.mark.parametrize("ranks", RANKS)
def test_digits_learns_the_same_on_as_many_ranks(cluster, ranks):
    """As the ranks' steps in one process, in the cluster's own environment."""
    folder = assets() / "jobs" / "digits"
    cluster.node("head", "mkdir -p /tmp/ranks")
    for name in ("training.py", "network.py"):
        cluster.node("head", f"cat >/tmp/ranks/{name}", text=(folder / name).read_text())
    command = f"cd /tmp/ranks && PYTHONPATH=. gpubed-rank python - {ranks} 1"
    told = cluster.node("head", command, text=RANKS_OF_ONE.read_text())
    wanted = {c.metric: c.at_least for c in jobfile.load("digits").sanity}["test_accuracy"]
    assert json.loads(told.splitlines()[-1])["test_accuracy"] >= wanted


def test_links_carry_their_rate_and_the_allreduce_uses_them(cluster):
    result = cluster.json("run", "allreduce")
    links = {(link["src"], link["dst"]): link for link in result["links"]}
    assert len(links) == 6, "three nodes have six directed links"
    for link in links.values():
        assert link["measured_bps"] == pytest.approx(link["declared_bps"], rel=0.05)
    largest = max(result["allreduce"], key=lambda row: row["bytes"])
    assert largest["busbw_bps"] == pytest.approx(
        2 * (3 - 1) / 3 * largest["bytes"] * 8 / largest["seconds"], rel=0.01
    )
    assert largest["busbw_bps"] >= 0.9 * 0.94 * 200e6


@pytest.mark.parametrize(
    "framework",
    ["horovod", "ddp", *(pytest.param(n, marks=pytest.mark.long) for n in ("fsdp", "pipeline"))],
)
def test_imagenet_tells_where_the_time_of_a_step_goes(cluster, framework):
    settings = {"model": "mobilenet_v3_small", "image_size": 32, "batch_size": 8, "steps": 8}
    given = {**settings, "warmup_steps": 2, "framework": framework}
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    result = cluster.json("run", "imagenet", *words)
    assert (result["status"], result["world_size"]) == ("ok", 3)
    parts = sum(result[name] for name in ("data_s", "compute_s", "exposed_communication_s"))
    assert parts == pytest.approx(result["step_s"], rel=0.03)
    assert result["images_per_s"] > 0


@pytest.mark.long
def test_gradients_that_nothing_hides_are_as_fast_as_the_link(cluster):
    settings = ["model=resnet18", "image_size=32", "batch_size=4", "steps=6", "warmup_steps=2"]
    words = [word for one in (*settings, "overlap=false") for word in ("--set", one)]
    result = cluster.json("run", "imagenet", *words)
    assert 0.5 * 200e6 <= result["busbw_bps"] <= 200e6


@pytest.mark.long
def test_plain_ansible_works_and_changes_nothing_after_up(cluster):
    """The run of `up` was the first one; this one has no strategy of ours, and no runner."""
    recap = cluster.playbook(ANSIBLE_STRATEGY="linear")
    assert re.findall(r"failed=(\d+)", recap) == ["0"] * 3
    assert re.findall(r"changed=(\d+)", recap) == ["0"] * 3


@pytest.mark.long
def test_check_mode_changes_nothing_and_fails_nowhere(cluster):
    recap = cluster.playbook("--check", "--diff")
    assert re.findall(r"failed=(\d+)", recap) == ["0"] * 3
    assert re.findall(r"changed=(\d+)", recap) == ["0"] * 3


@pytest.mark.long
@pytest.mark.parametrize("where", ["node-1", "workers"])
def test_a_run_may_leave_the_head_out(cluster, where):
    recap = cluster.playbook("--limit", where)
    nodes = 1 if where == "node-1" else 2
    assert re.findall(r"failed=(\d+)", recap) == ["0"] * nodes
    assert re.findall(r"changed=(\d+)", recap) == ["0"] * nodes


@pytest.mark.long
def test_a_port_changed_by_hand_leaves_only_its_checks_for_the_next_up(cluster):
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=9999))
    assert "/gpubed.yml" in cluster.call("configure", "--files-only").stdout
    recap = cluster.playbook("--tags", "jupyterlab")
    assert re.findall(r"changed=(\d+)", recap)[1:] == ["0", "0"], "only the head has JupyterLab"
    planned = cluster.json("plan")
    assert planned["roles"] == []
    assert [change["urn"].split("::")[-1] for change in planned["changes"]] == ["configuration"]
    logs = set((cluster.state / "logs").glob("*-ansible.log"))
    cluster.call("up")
    assert set((cluster.state / "logs").glob("*-ansible.log")) == logs
    assert cluster.json("plan")["changes"] == []
    assert "nothing to change" in cluster.call("up").stderr
    url = cluster.call("open", "--print").stdout
    assert ":9999/" in url
    certificate = str(cluster.state / "jupyterlab.crt")
    answer = subprocess.run(
        [
            "curl",
            "-sS",
            "--cacert",
            certificate,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-K",
            "-",
        ],
        input=f'url = "{url.strip().replace("/lab?", "/api/status?")}"',
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "200"


def test_the_job_that_init_writes_runs_as_it_is(cluster):
    assert cluster.start("init", "--job", "pi").wait() == 0
    result = cluster.json("run", "pi")
    assert (result["status"], result["world_size"]) == ("ok", 3)
    assert result["metrics"]["pi"] == pytest.approx(3.1416, abs=0.01)


def test_a_failing_job_is_a_failure(cluster):
    result = cluster.json("run", "digits", "--set", "learning_rate=0", rc=1)
    assert result["status"] == "failed"
    assert result["failures"]


def test_ssh_verb_reaches_every_node(cluster):
    for name in ("head", "node-1", "node-2"):
        assert "Linux" in cluster.call("ssh", name, "--", "uname").stdout
