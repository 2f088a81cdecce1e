"""Runs are listed and chosen, the last one among them, and old ones pruned."""

import json
import shutil

import pytest

from gpubed.checks import network
from gpubed.checks.context import Context
from gpubed.core.errors import UsageError
from gpubed.testbeds.specification import load_cluster
from support.run_verb import call, cluster, document

pytestmark = pytest.mark.process

__all__ = ["call", "cluster"]


def test_what_verify_measured_is_marked_and_is_never_the_last(call, cluster):
    call("run", "lab", "digits")
    network._allreduce(Context(load_cluster(cluster), {}), 0.5, 0.5)
    own, theirs = document(call("runs", "lab", "--json"))["runs"]
    assert (own["job"], own["by"]) == ("digits", "")
    assert (theirs["job"], theirs["by"]) == ("allreduce", "verify")
    assert document(call("runs", "lab", "show", "last", "--json"))["run_id"] == own["run_id"]
    rows = [line.split() for line in call("runs", "lab").stdout.splitlines()]
    assert any("by" in row for row in rows)
    told = {row[0]: "verify" in row for row in rows if row}
    assert (told[own["run_id"]], told[theirs["run_id"]]) == (False, True)
    assert "  by verify\n" in call("runs", "lab", "show", theirs["run_id"]).stdout


def test_runs_are_listed_and_chosen(call):
    assert "there is no run yet" in call("runs", "lab").stdout
    assert "there is no such run yet" in call("runs", "lab", "--job", "digits").stdout
    call("run", "lab", "digits")
    call("run", "lab", "digits", "--nodes", "1")
    assert len(document(call("runs", "lab", "--json"))["runs"]) == 2
    assert len(document(call("runs", "lab", "--last", "1", "--json"))["runs"]) == 1
    assert document(call("runs", "lab", "--status", "failed", "--json"))["runs"] == []
    assert document(call("runs", "lab", "--job", "allreduce", "--json"))["runs"] == []
    assert "digits" in call("runs", "lab").stdout


def test_old_ones_go_only_when_told_to(call, cluster):
    for _ in range(3):
        call("run", "lab", "digits")
    with pytest.raises(UsageError, match="not confirmed") as refused:
        call("runs", "lab", "prune", "--last", "1")
    assert refused.value.hint == "gpubed runs lab prune --last 1 -y"
    newest = max(path.name for path in cluster.runs.iterdir())
    told = document(call("runs", "lab", "prune", "--last", "1", "-y", "--json"))
    assert len(told["removed"]) == 2
    assert [path.name for path in cluster.runs.iterdir()] == [newest]


def test_what_a_former_version_left_is_passed_over_and_what_is_damaged_named(call, cluster):
    (cluster.runs / "20260101-000000000-digits").mkdir(parents=True)
    damaged = cluster.runs / "20260102-000000000-digits"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    done = call("runs", "lab", "--json")
    assert document(done)["runs"] == []
    assert str(damaged) in done.stderr


def edit(folder, **changes):
    """Change what a run's record says."""
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_prune_removes_what_it_looked_at_not_what_a_record_names(call, cluster):
    for _ in range(3):
        call("run", "lab", "digits")
    runs = sorted(cluster.runs.iterdir())
    edit(runs[0], run_id="../campaigns")
    (cluster.campaigns / "mine").mkdir(parents=True)
    kept = cluster.runs / "20200101-kept"
    shutil.copytree(runs[2], kept)
    done = call("runs", "lab", "prune", "--last", "1", "-y", "--json")
    assert document(done)["removed"] == [runs[1].name]
    assert (cluster.campaigns / "mine").is_dir()
    assert sorted(cluster.runs.iterdir()) == sorted([kept, runs[0], runs[2]])
    for left_out in (kept, runs[0]):
        assert str(left_out) in done.stderr
