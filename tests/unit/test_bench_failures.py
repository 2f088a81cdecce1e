"""gpubed bench goes on after whatever ended it, as docs/how-to/benchmark.md has it."""

import signal
import time

import pytest

from gpubed.core.errors import GpubedError
from support.bench_verb import bench

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


@pytest.mark.parametrize("damage", ["{"])
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
