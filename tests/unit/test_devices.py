"""On what trials and repetitions computed: those of different devices have no mean."""

from types import SimpleNamespace

import pytest

from gpubed.jobs import launchers
from gpubed.jobs.job_result import JobResult, repeated
from gpubed.jobs.runs import compare, record
from support.bench_verb import PLAIN, bench
from support.run_verb import GOOD, call, cluster, document
from support.stand_in_head import Head

pytestmark = pytest.mark.process

__all__ = ["bench", "call", "cluster"]

ONE_POINT = PLAIN.replace("[16, 32]", "[16]").replace("[1, 2]", "[1]")
MIXED = "trials computed on different devices (GTX 1080; V100): means mix them"


def result(device, **changes):
    metrics = {"images_per_s": 1.0} | ({"device": device} if device else {})
    return JobResult("digits", "/runs/1", 1, metrics, **changes)


def test_trials_tell_on_which_devices_they_computed():
    """As GPULab's jobs, which go to whichever worker has room; those that failed are in no mean."""
    trials = [result("V100"), result("GTX 1080"), result("V100"), result(None)]
    assert repeated(trials).devices == ["GTX 1080", "V100"]
    assert repeated([*trials[:1], result("T4", failures=["lost"])]).devices == ["V100"]
    assert repeated([repeated(trials), result("T4")]).devices == ["GTX 1080", "T4", "V100"]
    assert repeated([result(None)]).devices == []


@pytest.fixture
def on(monkeypatch):
    """A function that lets runs compute on one device after the other, over and over."""

    def devices(*names):
        begun = []

        def start(_cluster, launch, _say):
            begun.append(names[len(begun) % len(names)])
            Head.metrics = {**GOOD, "world_size": launch.ranks, "device": begun[-1]}
            return 0

        monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))

    return devices


def test_repetitions_on_different_devices_are_told(call, on):
    on("V100", "GTX 1080")
    assert MIXED in call("run", "lab", "digits", "--repeat", "2").stdout
    told = document(call("run", "lab", "digits", "--repeat", "2", "--json"))
    assert told["devices"] == ["GTX 1080", "V100"]
    assert [trial["devices"] for trial in told["trials"]] == [["V100"], ["GTX 1080"]]
    on("V100")
    assert "one device" not in call("run", "lab", "digits", "--repeat", "2").stdout


def test_a_run_keeps_on_which_device_it_computed(call, cluster, on):
    on("V100", "GTX 1080")
    names = [document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2)]
    before, now = (record.read(cluster.runs / name) for name in names)
    assert (before.devices, now.devices) == (("V100",), ("GTX 1080",))
    assert [str(one) for one in compare.differences(before, now)] == ["device: V100 → GTX 1080"]
    # Beforehand nobody knows.
    foreseen = now.model_copy(update={"devices": ()})
    assert compare.differences(before, foreseen) == []
    mixed = now.model_copy(update={"devices": ("GTX 1080", "V100")})
    record.write(cluster.runs / names[1], mixed)
    assert f"  {MIXED}\n" in call("runs", "lab", "show", names[1]).stdout
    assert "devices" not in document(call("run", "lab", "digits", "--dry-run", "--json"))


def test_a_repetition_on_another_device_than_its_points_others_has_failed(bench):
    bench.file.write_text(ONE_POINT.replace("repeat: 2", "repeat: 3"))
    bench.behave(devices=["V100", "GTX 1080", "V100"])
    said = bench()
    assert said.return_value == 1
    points = {point["repetition"]: point for point in bench.points()}
    assert [points[n]["status"] for n in range(3)] == ["ok", "failed", "ok"]
    why = "it computed on GTX 1080, and the point's other repetitions on V100"
    assert points[1]["reason"] == why
    assert why in said.stderr
    bench.behave(devices=["V100"])
    assert bench("--again-failed").return_value == 0
    assert {point["status"] for point in bench.points()} == {"ok"}
