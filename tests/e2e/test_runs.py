"""Runs on parts of a cluster, repeated and compared, as docs/how-to/runs.md says."""

import os
import signal
import subprocess

import pytest
import yaml

from support.cluster import BIN

pytestmark = [pytest.mark.e2e, pytest.mark.docker]
QUICK = ("--set", "epochs=2")


def run(cluster, *words):
    return cluster.json("run", "digits", *QUICK, *words)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [(["--on", "node-2"], ["node-2"]), (["--on", "node-1,node-2"], ["node-1", "node-2"])],
)
def test_ranks_start_where_they_were_asked_for(cluster, words, hosts):
    told = run(cluster, *words)
    assert (told["status"], told["world_size"]) == ("ok", len(hosts))
    kept = cluster.json("runs", "show", told["run_id"])
    assert [host["name"] for host in kept["origin"]["hosts"]] == hosts
    assert kept["changed_files"] == []
    assert set(kept["origin"]["rates_bps"]) >= {"node-0>node-1", "node-1>node-0"}


def test_a_look_says_what_would_start(cluster):
    before = cluster.json("runs")["runs"]
    assert run(cluster, "--dry-run")["world_size"] == 3
    assert cluster.json("runs")["runs"] == before


@pytest.mark.long
def test_one_node_and_three_are_compared(cluster):
    one, three = (run(cluster, "--nodes", str(count), "--repeat", "2") for count in (1, 3))
    assert [trial["status"] for trial in one["trials"]] == ["ok"] * 2
    names = [told["trials"][0]["run_id"] for told in (one, three)]
    [pair] = cluster.json("runs", "compare", *names)["comparisons"]
    assert {"world size", "nodes"} <= {row["what"] for row in pair["differences"]}
    rate = next(row for row in pair["metrics"] if row["metric"] == "images_per_s")
    assert rate["runs"] == [2, 2]
    assert rate["low"] <= rate["ratio"] <= rate["high"]


def test_a_run_is_repeated(cluster):
    first = run(cluster, "--ranks", "2")
    again = cluster.json("run", "--again", first["run_id"])
    assert again["world_size"] == 2
    kept = cluster.json("runs", "show", "last")
    assert (kept["again"], kept["values"]["epochs"]) == (first["run_id"], 2)
    [pair] = cluster.json("runs", "compare", first["run_id"], "last")["comparisons"]
    assert pair["differences"] == []


def test_a_run_that_is_killed_says_so_and_is_in_nobodys_way(cluster):
    words = [str(BIN / "gpubed"), "run", cluster.name, "digits", "--set", "epochs=2000"]
    process = subprocess.Popen(
        words, env=cluster.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stderr:
        if "epoch" in line:
            break
    assert cluster.json("runs", "show", "last")["status"] == "running"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert cluster.json("runs", "show", "last")["status"] == "interrupted"
    assert run(cluster)["status"] == "ok"


def test_a_run_goes_on_in_the_background_and_is_followed(cluster):
    told = run(cluster, "--detach")
    assert told["status"] == "running"
    followed = cluster.json("logs", told["run_id"], "--follow")
    assert followed["status"] == "ok"
    assert any("epoch" in line for line in followed["lines"])
    assert cluster.json("runs", "show", told["run_id"])["metrics"]["test_accuracy"] > 0


def test_a_run_in_the_background_is_ended_on_all_nodes(cluster):
    told = cluster.json("run", "digits", "--set", "epochs=2000", "--detach")
    ended = cluster.json("cancel")
    assert (ended["run_id"], ended["status"]) == (told["run_id"], "interrupted")
    # Ranks on other nodes hear of it through shared storage.
    gone = (
        "for second in $(seq 30); do pgrep --full '[m]ain.py --' || exit 0; sleep 1; done; exit 1"
    )
    cluster.call("ssh", "node-1", "--", gone)
    assert run(cluster)["status"] == "ok"


def test_old_runs_go_when_told_to(cluster):
    told = cluster.json("runs", "prune", "--last", "2", "-y")
    assert told["removed"]
    assert len(cluster.json("runs")["runs"]) == 2


# As a program that speaks Latin-1: more than a pipe holds comes after the byte.
NO_TEXT = r"""
import os, sys

if os.environ.get("HOROVOD_RANK", "0") == "0":
    sys.stdout.buffer.write(b"caf\xe9\n")
    sys.stdout.flush()
    for _ in range(2000):
        print("x" * 99)
    with open(os.environ["GPUBED_RUN_DIR"] + "/metrics.json", "w") as file:
        file.write("{}")
"""


def test_a_rank_may_print_what_is_no_text(cluster):
    job = cluster.root / "jobs" / "latin"
    job.mkdir(parents=True)
    (job / "main.py").write_text(NO_TEXT)
    described = {"schema": "gpubed/job/1", "description": "speaks Latin-1", "launcher": "ssh"}
    (job / "job.yml").write_text(yaml.safe_dump({**described, "command": ["python", "main.py"]}))
    told = cluster.json("run", "latin")
    assert told["status"] == "ok"
    lines = cluster.json("logs", told["run_id"])["lines"]
    assert [line for line in lines if line.endswith("caf\ufffd")]
    assert sum("xxxx" in line for line in lines) == 2000
