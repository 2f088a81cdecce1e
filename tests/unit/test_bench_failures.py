"""gpubed bench goes on after whatever ended it, as docs/how-to/benchmark.md has it."""

import json
import signal
import time
from datetime import UTC, datetime

import pytest

from gpubed.campaigns.records import Folder
from gpubed.core.errors import GpubedError
from gpubed.jobs.runs import record as runs
from support.bench_verb import PLAIN, bench
from support.samples import sample_origin

pytestmark = pytest.mark.process

__all__ = ["bench"]


def test_a_point_that_fails_is_kept_and_the_rest_goes_on(bench):
    bench.behave(fails="16")
    done = bench()
    assert done.return_value == 1
    assert len(bench.points()) == 8
    reasons = {p["reason"] for p in bench.points() if p["status"] == "failed"}
    assert reasons == {"the job ended with exit code 7"}
    assert "--again-failed" in done.stderr
    bench.behave()
    assert bench().return_value == 1, "what failed was forgotten"
    assert len(bench.calls) == 8
    assert bench("--again-failed").return_value == 0
    assert len(bench.calls) == 12
    assert {p["status"] for p in bench.points()} == {"ok"}
    assert len(list((bench.folder / "points" / "former").iterdir())) == 4


def test_an_error_of_a_run_is_its_points_reason(bench):
    bench.behave(unreachable="32")
    assert bench().return_value == 1
    failed = [p for p in bench.points() if p["status"] == "failed"]
    assert len(failed) == 4
    assert (failed[0]["reason"], failed[0]["run_id"]) == ("node-2 does not answer", "")


def test_without_enough_nodes_a_point_fails_and_the_others_go_on(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-1 node-2")
    assert bench().return_value == 1
    by_id = {}
    for point in bench.points():
        by_id.setdefault(point["id"].split(".")[0], set()).add(point["reason"])
    assert by_id["nodes-1"] == {""}
    (lost,) = by_id["nodes-2"] - {""}
    assert "node-1 may not be used, and no other stands in for it" in lost
    assert "node-1 is left out: lost" in lost
    again = f"gpubed bench lab {bench.file} --again-failed"
    assert f"to repeat what failed: gpubed up lab && {again}" in bench("--plan").stderr
    (bench.root / "lost").unlink()
    assert f"to repeat what failed: {again}" in bench("--plan").stderr


def test_a_campaign_that_names_no_nodes_never_shrinks_unnoticed(bench):
    bench.file.write_text(PLAIN.replace("nodes: [1, 2], ", ""))
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-2")
    assert bench().return_value == 1
    assert any("node-2 may not be used" in point["reason"] for point in bench.points())
    assert all(len(call["nodes"]) == 3 for call in bench.calls)


def test_no_other_node_takes_the_place_of_one_that_was_lost(bench):
    """It may be of another kind, and its figures would be averaged with the first one's."""
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-1")
    assert bench().return_value == 1
    used = {tuple(call["nodes"]) for call in bench.calls}
    assert ("node-0", "node-2") not in used
    assert any("node-1 may not be used" in point["reason"] for point in bench.points())


def test_a_head_that_is_lost_stops_the_campaign_and_fails_no_point(bench, monkeypatch):
    def refuse(*_):
        raise GpubedError("the head node-0 is not well")

    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended = len(bench.points())
    bench.behave()
    monkeypatch.setattr("gpubed.configuration.health.usable", refuse)
    with pytest.raises(GpubedError, match="the head"):
        bench()
    assert len(bench.points()) == ended


def test_an_interruption_loses_the_point_at_work_only(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended, called = bench.points(), len(bench.calls)
    assert called == len(ended) + 1
    bench.behave()
    assert bench().return_value == 0
    assert len(bench.points()) == 8
    assert len(bench.calls) == 8 + 1
    assert all(point in bench.points() for point in ended)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whatever_kills_it_the_next_one_goes_on(bench, number):
    bench.behave(seconds=0.3)
    process = bench.process()
    deadline = time.monotonic() + 60
    while len(bench.calls) < 4 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130), said
    ended = bench.points()
    assert 3 <= len(ended) < 8
    bench.behave()
    assert bench().return_value == 0
    ran = [(c["nodes"], c["settings"]) for c in bench.calls]
    assert len(ran) == 9, "more than the point at work was repeated"
    assert len(bench.points()) == 8
    assert all(point in bench.points() for point in ended)


def test_a_failure_that_is_not_repeated_stays_one(bench):
    stop = "repeat: 4\nstop: {metric: images_per_s, relative_width: 0.05, at_least: 2}\n"
    bench.file.write_text(PLAIN.replace("repeat: 2\n", stop))
    bench.behave(fails="16")
    assert bench().return_value == 1
    # Of a point that is known well enough by now, one repetition had failed.
    folder = Folder(bench.folder)
    failed = [p for p in folder.ended().values() if p.status == "failed"]
    by_id = {}
    for point in sorted(failed, key=lambda p: p.key):
        by_id.setdefault(point.id, []).append(point)
    for points in by_id.values():
        for point in points[1:]:
            (bench.folder / "points" / f"{point.id}.{point.repetition}.json").unlink()
            folder.keep(point.model_copy(update={"status": "ok", "reason": ""}))
    bench.behave()
    before = len(bench.calls)
    assert bench("--again-failed").return_value == 1, "a failure has vanished"
    assert len(bench.calls) == before, "it was known well enough"
    assert [p["status"] for p in bench.points()].count("failed") == 2
    assert not (bench.folder / "points" / "former").exists()


def test_a_failure_is_there_until_its_repetition_has_ended(bench):
    bench.behave(fails="16")
    assert bench().return_value == 1
    bench.behave(interrupted="16")
    assert bench("--again-failed").return_value == 130
    assert [p["status"] for p in bench.points()].count("failed") == 4
    bench.behave()
    assert bench("--again-failed").return_value == 0
    assert len(list((bench.folder / "points" / "former").iterdir())) == 4


def test_a_run_that_a_failed_point_had_named_does_not_come_back(bench):
    """A point that is known to have failed is run again, and not judged again."""
    bench.file.write_text(FEW)
    bench.behave(devices=["cuda:A100", "cuda:V100"])
    bench()
    good, mixed = bench.points()
    assert (good["status"], mixed["status"]) == ("ok", "failed")
    kept_as_a_run(bench, mixed)
    bench.behave(fails="16")
    bench("--again-failed")
    before = len(bench.calls)
    bench.behave(devices=["cuda:A100"])
    assert bench("--again-failed").return_value == 0
    assert len(bench.calls) == before + 1


FEW = """schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [1], batch: [16]}
settings: {epochs: 2}
repeat: 2
"""


def kept_as_a_run(bench, point):
    """Keep what the stand-in for a run does not: its record."""
    begun = json.loads((bench.folder / "campaign.json").read_text())
    record = runs.Record(
        run_id=point["run_id"],
        request=runs.Request(job="digits"),
        origin=sample_origin(job_sha256=begun["made_with"]["the job's files"]),
        command=("x",),
        values={},
        world_size=1,
        started=datetime.now(UTC),
        state="ok",
        set=bench.calls[0]["kin"],
        repetition=point["repetition"],
        seconds=1.0,
        metrics=point["metrics"],
        devices=(point["metrics"]["device"],),
    )
    runs.write(bench.paths.runs / record.run_id, record)
    runs.seal(bench.paths.runs / record.run_id)


@pytest.mark.parametrize("damage", ["", "{"])
def test_a_point_that_was_cut_off_has_a_way_on(bench, damage):
    assert bench().return_value == 0
    path = bench.folder / "points" / "nodes-1.batch-16.0.json"
    path.write_text(damage)
    with pytest.raises(GpubedError, match=r"nodes-1\.batch-16\.0\.json") as refused:
        bench()
    assert f"gpubed bench lab {bench.file} --again-failed" in refused.value.hint
    assert bench("--again-failed").return_value == 0
    assert len(bench.calls) == 9
    assert len(bench.points()) == 8
    assert [p.read_text() for p in (bench.folder / "points/former").iterdir()] == [damage]


def test_a_beginning_that_was_cut_off_has_a_way_on(bench):
    assert bench().return_value == 0
    (bench.folder / "campaign.json").write_text("")
    with pytest.raises(GpubedError, match=r"campaign\.json") as refused:
        bench()
    assert "--new" in refused.value.hint
    assert bench("--new").return_value == 0
    for path in (bench.folder / "points").iterdir():
        path.unlink()
    (bench.folder / "campaign.json").write_text("")
    assert bench().return_value == 0, "nothing had ended, so nothing is lost"


def test_a_point_that_was_edited_is_refused(bench):
    assert bench().return_value == 0
    path = bench.folder / "points" / "nodes-1.batch-16.0.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "settings": {"nodes": 2, "batch": 16}}))
    with pytest.raises(GpubedError, match="settings"):
        bench()
    path.write_text(json.dumps(told))
    stray = bench.folder / "points" / "nodes-3.batch-16.0.json"
    stray.write_text(json.dumps({**told, "id": "nodes-3.batch-16"}))
    with pytest.raises(GpubedError, match="has no such point"):
        bench()


def test_where_nothing_can_be_kept_nothing_is_run(bench):
    bench()
    points = bench.folder / "points"
    points.rename(bench.folder / "kept")
    points.write_text("")
    with pytest.raises(GpubedError, match="points is no folder"):
        bench()
    assert len(bench.calls) == 8
