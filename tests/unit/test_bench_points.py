"""gpubed bench goes through a matrix, as docs/how-to/benchmark.md has it."""

import json
from pathlib import Path

import pytest

from gpubed.report import read
from gpubed.report.analysis import analyse
from support.bench_verb import PLAIN, bench

pytestmark = pytest.mark.process

__all__ = ["bench"]


def test_every_point_is_run_as_often_as_the_file_says(bench):
    done = bench()
    assert done.return_value == 0
    assert len(bench.calls) == 8
    assert len(bench.points()) == 8
    one = next(p for p in bench.points() if p["id"] == "nodes-2.batch-16" and p["repetition"] == 1)
    assert one["status"] == "ok"
    assert one["settings"] == {"nodes": 2, "batch": 16}
    assert one["metrics"]["images_per_s"] == 32
    assert Path(one["run_dir"]).is_dir()
    assert one["run_id"] == Path(one["run_dir"]).name
    assert {tuple(call["nodes"]) for call in bench.calls} == {("node-0",), ("node-0", "node-1")}
    assert {call["settings"]["epochs"] for call in bench.calls} == {"2"}


def test_a_plan_says_what_is_pending_and_for_programs_how_long_it_takes(bench):
    words = ("--plan", "--json")
    told = json.loads(bench(*words).stdout)
    assert (told["ended"], told["left"], told["seconds_left"], told["guessed"]) == (0, 8, None, 0)
    bench()
    (bench.folder / "points" / "nodes-1.batch-16.1.json").unlink()
    row = next(line.split() for line in bench("--plan").stdout.splitlines() if " 16 " in line)
    assert row[-3:] == ["1", "1", "pending"], "it was ok, and the report said not ended"
    told = json.loads(bench(*words).stdout)
    assert (told["ended"], told["left"], told["guessed"]) == (7, 1, 0)
    assert told["seconds_left"] > 0
    assert told["node_hours_left"] is None, "nodes of this machine are free"


def test_the_result_is_a_table_and_a_document(bench):
    done = bench()
    assert "8 of 8" in done.stderr
    assert "4 points x 2" in done.stderr
    assert "images_per_s" in done.stdout
    assert "±" in done.stdout
    document = json.loads(bench("--json").stdout)
    assert document["schema"] == "gpubed/bench/1"
    assert document["left"] == 0
    assert {"id", "status", "repetition", "settings", "run_id", "metrics"} <= set(
        document["points"][0]
    )
    assert len(document["points"]) == 8
    assert len(bench.calls) == 8, "what has ended was run again"


@pytest.mark.parametrize(
    ("value", "lacks"), [("fast", True), (True, True), (1e31, True), (None, False), (5, False)]
)
def test_bench_and_report_agree_on_what_a_point_lacks(bench, value, lacks):
    bench.behave(metrics={"images_per_s": value, "loss": 0.5})
    done = bench("--json")
    assert done.return_value == int(lacks)
    for point in json.loads(done.stdout)["points"]:
        assert point["status"] == ("failed" if lacks else "ok")
        assert point.get("reason", "") == ("it gave no images_per_s" if lacks else "")
    found = analyse(read.load(bench.paths, "mine"))
    assert len(found.failed) == (8 if lacks else 0)


def test_repetitions_end_once_the_interval_is_narrow(bench):
    stop = "repeat: 10\nstop: {metric: images_per_s, relative_width: 0.05, at_least: 3}\n"
    bench.file.write_text(PLAIN.replace("repeat: 2\n", stop))
    assert bench().return_value == 0
    assert len(bench.calls) == 4 * 3
    assert json.loads(bench("--json").stdout)["left"] == 0
