"""Runs are compared: what differs between them, and what of it is more than chance."""

import json
import random
import statistics
from types import SimpleNamespace

import pytest

from gpubed.jobs import jobfile, launchers
from gpubed.jobs.runs import compare, record
from gpubed.jobs.runs.record import Choice, Record, Request
from support.run_verb import call, cluster, document
from support.stand_in_head import Head

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


def test_a_figure_that_one_repetition_lacks_is_of_the_others(call, cluster):
    told = document(call("run", "lab", "digits", "--repeat", "3", "--json"))
    first = cluster.runs / told["trials"][0]["run_id"]
    known = json.loads((first / "run.json").read_text())
    known["metrics"]["loss"] = None
    (first / "run.json").write_text(json.dumps(known))
    other = document(call("run", "lab", "digits", "--json"))["run_id"]
    done = call("runs", "lab", "compare", other, first.name, "--json")
    rows = {row["metric"]: row for row in document(done)["comparisons"][0]["metrics"]}
    assert rows["loss"]["runs"] == [1, 2]


def test_a_run_says_what_its_links_were_held_to(call, cluster, monkeypatch):
    call("run", "lab", "digits")
    declared = record.find(cluster, "last")
    origin = declared.origin.model_copy(update={"rate_bps": 10_000_000})
    slower = declared.model_copy(update={"origin": origin})
    assert declared.origin.rate_bps == 200_000_000
    said = [str(one) for one in compare.differences(slower, declared)]
    assert said == ["link rate: 10 Mbit/s → 200 Mbit/s"]


def test_runs_with_other_variables_of_an_owner_say_so(call, cluster):
    """As an owner's settings of Horovod: figures from before and after are of two things."""
    names = [document(call("run", "lab", "digits", "--json"))["run_id"]]
    for folder, nodes in (("group_vars/all", "3"), ("host_vars/node-2", "1")):
        (cluster.inventory / folder).mkdir(parents=True)
        (cluster.inventory / folder / "mine.yml").write_text("horovod_fusion_mb: 64\n")
        told = document(call("run", "lab", "digits", "--nodes", nodes, "--json"))
        names.append(told["run_id"])
    first, second, third = (record.read(cluster.runs / name) for name in names)
    [one] = compare.differences(first, second)
    assert one.what == "group_vars"
    # Of a node that has no ranks in one of them, nothing is said.
    others = {one.what for one in compare.differences(second, third)}
    assert others == {"world size", "nodes", "machines"}


def test_single_runs_say_that_nothing_can_be_said(call):
    names = [document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2)]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    assert pair["differences"] == []
    verdicts = {row["metric"]: row["verdict"] for row in pair["metrics"]}
    assert verdicts.pop("world_size") == "the same", "a setting is no measurement"
    assert set(verdicts.values()) == {"unknown: no repetition"}


def test_where_nothing_can_be_compared_it_is_said_why(call, cluster, monkeypatch):
    call("run", "lab", "digits")
    first = record.find(cluster, "last")
    monkeypatch.setattr(
        launchers, "named", lambda _: SimpleNamespace(run=lambda *_: Head.metrics.clear() or 1)
    )
    call("run", "lab", "digits")
    failed = record.find(cluster, "last")
    said = call("runs", "lab", "compare", first.run_id, failed.run_id).stdout
    why = f"nothing to compare: {failed.run_id} ended as failed and reported no number"
    assert why in said
    assert "verdict" not in said
    request = failed.request.model_copy(update={"job": "allreduce"})
    other = failed.model_copy(update={"request": request, "metrics": {"busbw_bps": 1.0}})
    record.write(cluster.runs / failed.run_id, other.model_copy(update={"state": "ok"}))
    said = call("runs", "lab", "compare", first.run_id, failed.run_id).stdout
    assert "nothing to compare: digits and allreduce have no figure in common" in said


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


def kept(cluster, told):
    """Return the records of a set, and where each is."""
    runs = [cluster.runs / trial["run_id"] for trial in told["trials"]]
    return [(record.read(path), path) for path in runs]


def test_a_repetition_that_was_made_again_counts_as_it_was_last(call, cluster):
    """The former one may have been on another GPU, which is why it was made again."""
    told = [document(call("run", "lab", "digits", "--repeat", "3", "--json")) for _ in range(2)]
    (first, _), (second, _), (third, _) = kept(cluster, told[0])
    [(other, _), *_] = kept(cluster, told[1])
    again = third.model_copy(
        update={"repetition": 0, "run_id": "20990101-000000000-digits", "started": record.now()}
    )
    counted = compare.repetitions(first, other, [again, first, second, third])
    assert counted == [again, second, third]


def test_a_set_that_computed_on_several_devices_says_so(call, cluster):
    told = [document(call("run", "lab", "digits", "--repeat", "2", "--json")) for _ in range(2)]
    for device, (one, path) in zip(("A100", "V100"), kept(cluster, told[0]), strict=True):
        record.write(path, one.model_copy(update={"devices": (f"cuda:{device}",)}))
    names = [each["trials"][0]["run_id"] for each in told]
    said = call("runs", "lab", "compare", *names).stdout
    assert "not all computed on one device (cuda:A100; cuda:V100)" in " ".join(said.split())


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


def test_a_set_has_the_same_mean_whatever_it_is_compared_with():
    """It was an arithmetic one beside a single run, and a geometric one beside several."""
    several = [0.0004, 0.0029]
    [[one]] = compare.ratios([_pair(several, [0.001])])
    [[other]] = compare.ratios([_pair(several, [0.001, 0.002])])
    assert one.before == other.before == pytest.approx(statistics.geometric_mean(several))


def _pair(before, now):
    return [
        [SimpleNamespace(metrics={"data_s": value}) for value in side] for side in (before, now)
    ]


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        ("imagenet", {"steps", "timed_steps", "epochs", "resumed_at", "gradient_bytes"}),
        ("allreduce", {"world_size"}),
    ],
)
def test_what_a_job_was_given_is_no_measurement(job, settings):
    """Steps were "unknown: repetitions with one seed are no samples"."""
    metrics = jobfile.load(job).metrics
    assert all(metrics[name].setting for name in settings)


def test_settings_are_the_same_or_different():
    """What says how a run was made is known, and needs no repetitions to be judged."""
    figures = {
        "world_size": ([2, 2], [3, 3]),
        "threads_per_rank": ([1, 1], [1, 1]),
        "tuned_cycle_ms": ([1, 2], [3, 3]),
    }
    [seen] = compare.ratios([sets(**figures)], figures)
    verdicts = ["different", "the same", "unknown: repetitions with one seed are no samples"]
    assert [one.verdict for one in seen] == verdicts


def test_a_comparison_says_that_settings_differ_and_shows_p_in_a_narrow_terminal(call):
    one, two = (
        document(call("run", "lab", "digits", "--nodes", n, "--repeat", "3", "--json"))
        for n in "12"
    )
    names = [told["trials"][0]["run_id"] for told in (one, two)]
    said = call("runs", "lab", "compare", *names).stdout
    assert (
        next(line for line in said.splitlines() if "world_size" in line).split()[-1] == "different"
    )
    heading = next(line for line in said.splitlines() if "verdict" in line)
    assert heading.split()[-2:] == ["p", "verdict"]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.9, 1.2, "0.900 … 1.200"), (0.0001, 60967.2, "too few runs"), (None, None, "")],
)
def test_an_interval_that_tells_nothing_is_not_written(low, high, told):
    assert compare.bounds(low, high) == told


def test_it_is_said_for_how_many_comparisons_verdicts_are_corrected(call):
    names = [
        document(call("run", "lab", "digits", *words, "--repeat", "3", "--json"))["trials"][0]
        for words in ((), ("--nodes", "2"), ("--nodes", "1"))
    ]
    words = ("runs", "lab", "compare", *(one["run_id"] for one in names))
    told = document(call(*words, "--json"))["comparisons"]
    chances = [row["chance"] for pair in told for row in pair["metrics"] if row["chance"]]
    assert len(chances) == 2  # images_per_s of each pair: the other figures are always the same
    assert {one["count"] for one in chances} == {len(chances)}
    assert all(one["alone"] <= one["among"] for one in chances)
    assert (
        f"p and verdict are corrected for all {len(chances)} of them (Holm)" in call(*words).stdout
    )


def test_of_many_figures_that_do_not_differ_hardly_ever_one_seems_to():
    """Two sets of three runs each, and 20 figures of each, all of them noise."""
    alarms, alone, sets_ = 0, 0, 200
    for seed in range(sets_):
        chance = random.Random(seed)
        figures = {
            f"figure_{number}": tuple([chance.gauss(100, 3) for _ in range(3)] for _ in range(2))
            for number in range(20)
        }
        [seen] = compare.ratios([sets(**figures)])
        alarms += any(one.verdict == "differs" for one in seen)
        alone += any(one.chance.alone <= 0.05 for one in seen)
    assert alarms <= 10 + 6  # 5 % of 200, and luck
    assert alone > sets_ / 3, "without a correction, most families tell something"


def test_one_figure_that_differs_is_found_among_many_that_do_not():
    chance = random.Random(1)
    noise = {
        f"figure_{number}": tuple([chance.gauss(100, 1) for _ in range(3)] for _ in range(2))
        for number in range(20)
    }
    [seen] = compare.ratios([sets(images_per_s=([100, 101, 102], [150, 151, 152.5]), **noise)])
    assert [one.metric for one in seen if one.verdict == "differs"] == ["images_per_s"]


def test_the_means_beside_a_ratio_are_those_that_it_is_of():
    """With an outlier, arithmetic ones said "slower" beside a ratio that said "faster"."""
    [[rate]] = compare.ratios([sets(images_per_s=([345, 1970, 12244], [3900, 4200, 4569]))])
    assert rate.now / rate.before == pytest.approx(rate.ratio)
    assert rate.low < rate.ratio < rate.high
