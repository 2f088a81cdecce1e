"""Runs are compared: what differs between them, and what of it is more than chance."""

from types import SimpleNamespace

import pytest

from gpubed.jobs.runs import compare, record
from gpubed.jobs.runs.record import Choice, Record, Request
from support.run_verb import call, cluster, document

pytestmark = pytest.mark.process

__all__ = ["call", "cluster"]


def test_two_sets_are_compared(call):
    one = document(call("run", "lab", "digits", "--nodes", "1", "--repeat", "3", "--json"))
    two = document(call("run", "lab", "digits", "--nodes", "2", "--repeat", "3", "--json"))
    names = [told["trials"][0]["run_id"] for told in (one, two)]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    rates = {row["metric"]: row for row in pair["metrics"]}
    assert rates["images_per_s"]["verdict"] == "differs"
    assert rates["images_per_s"]["ratio"] == pytest.approx(2, rel=0.01)
    assert rates["loss"]["verdict"] == "the same"
    assert {row["what"] for row in pair["differences"]} == {"world size", "nodes", "machines"}
    said = call("runs", "lab", "compare", *names).stdout
    assert "differs" in said
    assert f"{names[0]} (mean of the 3 of its set) → {names[1]} (mean of the 3 of its set)" in said
    assert "Of several runs, before and now are geometric means" in said


def test_runs_of_one_set_are_compared_as_they_are(call):
    """Else both sides were the whole set, and nothing ever differed."""
    told = document(call("run", "lab", "digits", "--repeat", "2", "--json"))
    names = [trial["run_id"] for trial in told["trials"]]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    assert {tuple(row["runs"]) for row in pair["metrics"]} == {(1, 1)}


def test_single_runs_say_that_nothing_can_be_said(call):
    names = [document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2)]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    assert pair["differences"] == []
    verdicts = {row["metric"]: row["verdict"] for row in pair["metrics"]}
    assert verdicts.pop("world_size") == "the same", "a setting is no measurement"
    assert set(verdicts.values()) == {"unknown: no repetition"}


def test_differences_are_told_in_words(call, cluster):
    call("run", "lab", "digits")
    before = record.find(cluster, "last")
    request = Request(job="digits", settings={"batch": "64"}, choice=Choice(nodes=1))
    origin = before.origin.model_copy(update={"gpubed": "9"})
    now = Record.model_validate(
        {**before.model_dump(by_alias=True), "request": request, "origin": origin}
        | {"values": {**before.values, "batch": 64}}
    )
    said = [str(one) for one in compare.differences(before, now)]
    assert said == ["--set batch: 32 → 64", f"gpubed: {before.origin.gpubed} → 9"]
    assert compare.differences(before, before) == []


def sets(**metrics):
    """Return two sets of runs, by what each of a metric's two sets measured."""
    return [
        [SimpleNamespace(metrics=dict(zip(metrics, values, strict=True))) for values in rows]
        for rows in (zip(*(of[side] for of in metrics.values()), strict=True) for side in (0, 1))
    ]


def test_the_same_each_time_is_no_sample(call, cluster):
    """Repetitions have one seed, so what is computed from it has no spread to judge by."""
    [seen] = compare.ratios(
        [
            sets(
                test_accuracy=([0.9611] * 3, [0.9583] * 3),
                loss=([0.09] * 3, [0.09] * 3),
                world_size=([2, 2, 2], [2, 3, 2]),
                images_per_s=([100, 101, 102], [200, 201, 203]),
            )
        ]
    )
    verdicts = {one.metric: one.verdict for one in seen}
    assert verdicts == {
        "test_accuracy": "unknown: repetitions with one seed are no samples",
        "loss": "the same",
        "world_size": "unknown: repetitions with one seed are no samples",
        "images_per_s": "differs",
    }
    assert [one.low for one in seen[:3]] == [None] * 3
