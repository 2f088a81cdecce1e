"""What a report finds in a campaign of which it is known what there is to find.

The figures come from `support.measurements`: a model of alpha and beta with a little noise.
"""

import itertools
import json
import math
import random
import re
import statistics
from collections import Counter

import pytest

from gpubed.core.paths import Project
from gpubed.report import analysis, findings, read, tables, wording
from support import measurements


@pytest.fixture
def analysed(tmp_path):
    """A function that analyses a campaign."""

    def analyse(campaign=None, points=None):
        campaign = campaign or measurements.document()
        cluster = Project(tmp_path).cluster("lab")
        measurements.write(cluster, campaign, points)
        return analysis.analyse(read.load(cluster, campaign["name"]))

    return analyse


def told(found):
    return " ".join(findings.told(found))


def test_every_point_is_a_group_with_its_interval(analysed):
    found = analysed()
    assert len(found.groups) == 12
    assert {len(group.points) for group in found.groups} == {3}
    assert all(group.half_width("images_per_s") > 0 for group in found.groups)
    assert found.metric == "images_per_s"
    assert found.missing == found.single == found.failed == ()


def test_efficiency_is_what_the_model_says(analysed):
    found = analysed()
    assert len(found.series) == 4
    for series in found.series:
        assert [one.size for one in series.points] == [1, 2, 3]
        for one in series.points[1:]:
            true = measurements.efficiency(one.size, **series.settings)
            assert one.efficiency.value == pytest.approx(true, rel=0.03)
            assert one.efficiency.low < one.efficiency.value < one.efficiency.high
            mean = one.group.mean("images_per_s") / series.baseline.mean("images_per_s")
            assert one.efficiency.value == pytest.approx(mean / one.size, rel=1e-3)
            assert one.ideal == pytest.approx(series.baseline.mean("images_per_s") * one.size)


def test_intervals_hold_the_truth_about_as_often_as_they_say(analysed):
    """Of one campaign with many points; 95 % of them, less what chance may take."""
    campaign = measurements.document(factors={"nodes": [1, 2, 3], "seed": list(range(40))})
    found = analysed(campaign)
    held = [
        one.efficiency.low <= measurements.efficiency(one.size, 32, "100M") <= one.efficiency.high
        for series in found.series
        for one in series.points[1:]
    ]
    assert len(held) == 80
    assert sum(held) / len(held) > 0.85


def test_the_link_is_what_limits(analysed):
    found = analysed()
    slow = [one for one in found.limits if one.series.settings["rate"] == "100M"]
    assert {one.kind for one in slow} == {"link"}
    worst = max(slow, key=lambda one: one.share)
    assert worst.series.settings["batch_size"] == 32
    assert worst.seconds == pytest.approx(measurements.allreduce_s(3, "100M"), rel=0.03)
    # The bound leaves out the latency of the messages, nothing else.
    alpha = 4 * measurements.ALPHA_S
    assert worst.least_s == pytest.approx(measurements.allreduce_s(3, "100M") - alpha)
    assert "The link limits it" in told(found)
    assert "with batch 32, 100 Mbit/s on 3 nodes" in told(found)


@pytest.mark.parametrize("slots", [1, 4])
def test_the_link_needs_what_the_job_says_that_ranks_send(analysed, slots):
    """FSDP gathers weights twice and scatters gradients once: 3(N-1)/N of them, not 2(N-1)/N."""
    campaign = measurements.document(factors={"nodes": [1, 3], "rate": ["100M"]})
    points = list(measurements.measured(campaign))
    for point in points:
        world = point["settings"]["nodes"] * slots
        sent = 3 * (world - 1) / world * measurements.GRADIENT_BYTES
        point["metrics"] |= {"sent_bytes_per_step": sent, "world_size": world}
    [one] = analysed(campaign, points).limits
    # Ranks of a node may send for each other: the link sees what 3 nodes need.
    sent = 3 * (2 / 3) * measurements.GRADIENT_BYTES
    assert one.least_s == pytest.approx(sent * 8 / (1e8 * measurements.GOODPUT))


def test_compute_is_what_limits_where_nodes_share_processors(analysed):
    campaign = measurements.document(factors={"nodes": [1, 3], "rate": ["1G"]})
    points = list(measurements.measured(campaign))
    for point in points:
        nodes, found = point["settings"]["nodes"], point["metrics"]
        found["compute_s"] *= nodes
        found["step_s"] = sum(
            found[part] for part in ("compute_s", "exposed_communication_s", "data_s")
        )
        found["images_per_s"] = nodes * 32 / found["step_s"]
        found["ranks"] = []
    found = analysed(campaign, points)
    assert [one.kind for one in found.limits] == ["compute"]
    assert "nodes of the local backend share the CPUs of one machine" in told(found)
    elsewhere = analysed({**campaign, "backend": "other"}, points)
    assert "share the CPUs" not in told(elsewhere)
    said = analysed({**campaign, "backend": "other", "one_host": True}, points)
    assert "nodes of the other backend share the CPUs of one machine" in told(said)
    denied = analysed({**campaign, "one_host": False}, points)
    assert "share the CPUs" not in told(denied)


def test_reading_data_is_what_limits(analysed):
    campaign = measurements.document(factors={"nodes": [1, 3], "rate": ["1G"]})
    points = list(measurements.measured(campaign))
    for point in points:
        if point["settings"]["nodes"] == 3:
            point["metrics"] |= {"data_s": 0.5, "step_s": point["metrics"]["step_s"] + 0.49}
    assert [one.kind for one in analysed(campaign, points).limits] == ["data"]


def test_nothing_limits_what_scales(analysed):
    campaign = measurements.document(factors={"nodes": [1, 3]})
    points = list(measurements.measured(campaign))
    for point in points:
        point["metrics"] |= {"exposed_communication_s": 0.001, "step_s": 0.411, "compute_s": 0.4}
    found = analysed(campaign, points)
    assert [one.kind for one in found.limits] == ["none"]
    assert "Nothing limits it much" in told(found)


def test_a_straggler_is_found_with_its_host(analysed):
    campaign = measurements.document()
    found = analysed(campaign, measurements.measured(campaign, slow=1.5))
    slow = [one for one in found.stragglers if one.group.settings["nodes"] == 3]
    assert {one.host for one in slow} == {"node-2"}
    assert all(one.slow and one.ratio.value == pytest.approx(1.5, rel=0.02) for one in slow)
    fast = [one for one in found.limits if one.series.settings["rate"] == "1G"]
    assert {one.kind for one in fast} == {"stragglers"}
    assert "node-2 is a straggler at 4 of 8 points" in told(found)
    assert not any(one.slow for one in analysed(measurements.document("even")).stragglers)


def test_of_two_ranks_the_other_one_is_the_median(analysed):
    campaign = measurements.document(factors={"nodes": [2]})
    [two] = analysed(campaign, measurements.measured(campaign, slow=1.5)).stragglers
    assert two.ratio.value == pytest.approx(1.5, rel=0.02)


def ranks(*seconds, hosts=None):
    """Return the `ranks` of a run: what each computes, on average per step."""
    return [
        {"rank": rank, "host": hosts[rank] if hosts else f"node-{rank}", "compute_s": took}
        for rank, took in enumerate(seconds)
    ]


def runs(*repetitions, nodes=3, hosts=None):
    """Return a point's repetitions, of which only what the ranks computed matters."""
    return [
        measurements.point({"nodes": nodes}, number, {"ranks": ranks(*seconds, hosts=hosts)})
        for number, seconds in enumerate(repetitions)
    ]


@pytest.fixture
def straggling(analysed):
    """A function that analyses the repetitions of one point; see `runs`."""

    def analyse(*repetitions, **more):
        nodes = len(repetitions[0])
        campaign = measurements.document(factors={"nodes": [nodes]}, repeat=len(repetitions))
        return analysed(campaign, runs(*repetitions, nodes=nodes, **more))

    return analyse


def test_noise_names_no_host(straggling):
    """Another one is the slowest each time."""
    found = straggling((0.48, 0.4, 0.4), (0.4, 0.47, 0.4), (0.4, 0.4, 0.46))
    assert not any(one.slow for one in found.stragglers)
    assert "is a straggler at" not in told(found)
    assert "No rank is shown to be a straggler" in told(found)


def test_who_was_slow_once_is_not_called_a_straggler(analysed):
    """As the campaign `smoke` has it: two nodes, two points, 10 steps each, no repetition."""
    campaign = measurements.document(factors={"nodes": [2], "batch": [16, 32]}, repeat=1)
    each = {16: (0.252, 0.22), 32: (0.28, 0.36)}
    points = [
        measurements.point({"nodes": 2, "batch": batch}, 0, {"ranks": ranks(*seconds)})
        for batch, seconds in each.items()
    ]
    found = analysed(campaign, points)
    assert not any(one.slow for one in found.stragglers)
    assert "is a straggler at" not in told(found)
    assert "Whether a rank is a straggler is not known without repetitions" in told(found)


def test_a_host_that_is_slow_each_time_is_named_though_it_is_not_the_slowest_each_time(straggling):
    each = (
        (0.4, 0.4, 0.52),
        (0.6, 0.4, 0.51),
        (0.4, 0.4, 0.52),
        (0.4, 0.41, 0.52),
        (0.41, 0.4, 0.53),
    )
    found = straggling(*each, *each)
    [one] = found.stragglers
    assert (one.host, one.slow) == ("node-2", True)
    others = (1.3, 0.51 / 0.5, 1.3, 0.52 / 0.405, 0.53 / 0.405)
    assert one.ratio.value == pytest.approx(statistics.fmean(others))
    assert "node-2 is a straggler at 1 of 1 point" in told(found)


def test_a_rank_is_compared_with_the_median_of_the_others(straggling):
    [one] = straggling((0.4, 0.48, 0.72), (0.4, 0.48, 0.72)).stragglers
    assert one.ratio.value == pytest.approx(0.72 / 0.44)
    assert one.waiting_s == pytest.approx(0.72 - 0.44)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_median_is_that_of_all_others(straggling, count):
    seconds = [0.4 + 0.1 * (number * 5 % count) for number in range(count)]
    slowest = max(seconds)
    median = statistics.median(one for one in seconds if one != slowest)
    assert straggling(seconds).stragglers[0].ratio.value == pytest.approx(slowest / median)


def test_ranks_that_nobody_can_have_measured_are_no_figures(straggling):
    found = straggling((1e30, 5e-324), (1e30, 5e-324))
    assert found.stragglers == ()
    json.dumps(found.document(), allow_nan=False)


def test_one_slow_rank_of_a_host_with_several_is_found(straggling):
    hosts = ["node-0", "node-0", "node-1", "node-1"]
    [one] = straggling((0.4, 0.4, 0.4, 0.6), (0.4, 0.4, 0.4, 0.61), hosts=hosts).stragglers
    assert (one.host, one.slow) == ("node-1", True)


def test_ranks_of_one_host_that_take_turns_are_noise(straggling):
    found = straggling((0.5, 0.4, 0.4), (0.4, 0.5, 0.4), (0.4, 0.4, 0.5), hosts=["node-0"] * 3)
    assert not found.stragglers[0].slow


def test_a_host_is_itself_where_its_ranks_have_other_numbers(analysed):
    campaign = measurements.document(factors={"nodes": [3]}, repeat=2)
    orders = (["node-0", "node-1", "node-2"], ["node-2", "node-0", "node-1"])
    points = [
        measurements.point(
            {"nodes": 3},
            number,
            {"ranks": ranks(*(0.6 if h == "node-2" else 0.4 for h in hosts), hosts=hosts)},
        )
        for number, hosts in enumerate(orders)
    ]
    [one] = analysed(campaign, points).stragglers
    assert (one.host, one.slow, one.ratio.value) == ("node-2", True, pytest.approx(1.5))


def test_one_node_serves_every_rate(analysed):
    campaign = measurements.document()
    campaign["campaign"]["exclude"] = [{"nodes": 1, "rate": "1G"}]
    points = [
        point
        for point in measurements.measured(campaign)
        if (point["settings"]["nodes"], point["settings"]["rate"]) != (1, "1G")
    ]
    found = analysed(campaign, points)
    assert found.missing == ()
    fast = [series for series in found.series if series.settings["rate"] == "1G"]
    assert len(fast) == 2
    for series in fast:
        assert series.borrowed
        assert series.baseline.settings["nodes"] == 1
        true = measurements.efficiency(3, **series.settings)
        assert series.largest.efficiency.value == pytest.approx(true, rel=0.03)


def test_without_one_node_the_smallest_number_is_the_baseline(analysed):
    found = analysed(measurements.document(factors={"nodes": [2, 3], "rate": ["1G"]}))
    [series] = found.series
    assert (series.baseline_size, series.borrowed) == (2, False)
    both = measurements.efficiency(3, 32, "1G") / measurements.efficiency(2, 32, "1G")
    assert series.largest.efficiency.value == pytest.approx(both, rel=0.03)
    assert "on 2 nodes to" in told(found)


def test_rates_are_compared_where_there_is_a_link(analysed):
    found = analysed()
    assert {one.factor for one in found.comparisons} == {"rate"}
    assert {one.group.settings["nodes"] for one in found.comparisons} == {2, 3}
    for one in found.comparisons:
        assert (one.value, one.against) == ("1G", "100M")
        size, batch = one.group.settings["nodes"], one.group.settings["batch_size"]
        true = measurements.efficiency(size, batch, "1G") / measurements.efficiency(
            size, batch, "100M"
        )
        assert one.ratio.value == pytest.approx(true, rel=0.03)
        assert one.ratio.tells()


def test_horovod_is_compared_with_ddp(analysed):
    campaign = measurements.document(factors={"nodes": [2, 3], "framework": ["ddp", "horovod"]})
    points = list(measurements.measured(campaign))
    for point in points:
        if point["settings"]["framework"] == "horovod":
            point["metrics"]["images_per_s"] *= 1.25
    found = analysed(campaign, points)
    assert {(one.value, one.against) for one in found.comparisons} == {("horovod", "ddp")}
    assert all(one.ratio.value == pytest.approx(1.25, rel=0.05) for one in found.comparisons)
    assert "horovod gives 1.2" in told(found)


@pytest.mark.parametrize(
    ("factor", "values", "pairs"),
    [
        ("overlap", [False, True], {("overlap on", "overlap off")}),
        ("precision", ["bf16", "fp32"], {("bf16", "fp32")}),
        ("framework", ["fsdp", "horovod", "ddp"], {("fsdp", "ddp"), ("horovod", "ddp")}),
        ("environment", ["docker", "host"], {("docker", "host")}),
        ("fusion_mb", [64, 1.5], {("fusion mb 64", "fusion mb 1.5")}),
        ("batch", [32, 64], set()),
        ("rate", ["1G", "50M", "200M"], {("1 Gbit/s", "50 Mbit/s"), ("200 Mbit/s", "50 Mbit/s")}),
    ],
)
def test_what_is_compared_with_what(analysed, factor, values, pairs):
    found = analysed(measurements.document(factors={"nodes": [2], factor: values}))
    said = {
        tuple(wording.setting(factor, v) for v in (c.value, c.against)) for c in found.comparisons
    }
    assert said == pairs


def test_what_was_repeated_until_it_looked_sure_says_so(analysed):
    campaign = measurements.document()
    campaign["campaign"]["stop"] = {"metric": "images_per_s", "relative_width": 0.05}
    assert "until the interval of images_per_s was narrow" in told(analysed(campaign))


def test_what_does_not_differ_is_not_said_to(analysed):
    campaign = measurements.document(factors={"nodes": [2, 3], "framework": ["ddp", "horovod"]})
    points = list(measurements.measured(campaign))
    assert "Between horovod and ddp no difference shows" in told(analysed(campaign, points))


def test_what_was_measured_once_has_no_interval_and_says_so(analysed):
    found = analysed(measurements.document(repeat=1))
    assert len(found.single) == 12
    for series in found.series:
        assert series.largest.efficiency.low is None
    assert "12 of 12 points were measured only once" in told(found)
    assert "(no interval: not repeated, or the same each time)" in told(found)
    assert not any(one.ratio.tells() for one in found.comparisons)


def test_without_repetition_nothing_is_said_of_chance(analysed):
    campaign = measurements.document(factors={"nodes": [2], "framework": ["ddp", "horovod"]})
    points = [p for p in measurements.measured(campaign) if p["repetition"] == 0]
    text = told(analysed(campaign, points))
    assert "times the throughput of ddp" in text
    assert "by more than chance" not in text
    assert "such comparison" not in text


def test_only_repeated_comparisons_are_asked_for_chance(analysed):
    """The one that was not repeated differs the most, and counts neither way."""
    campaign = measurements.document(factors={"nodes": [2, 3], "framework": ["ddp", "horovod"]})
    points = []
    for point in measurements.measured(campaign):
        settings = point["settings"]
        if settings["framework"] == "horovod":
            point["metrics"]["images_per_s"] *= 1.25 if settings["nodes"] == 2 else 3
        if settings["nodes"] == 2 or point["repetition"] == 0:
            points.append(point)
    text = told(analysed(campaign, points))
    assert "1 of 1 such comparison that was repeated differs by more than chance" in text
    assert "horovod gives 1.2" in text


def test_the_largest_of_no_differences_was_repeated(analysed):
    campaign = measurements.document(factors={"nodes": [2, 3], "framework": ["ddp", "horovod"]})
    points = []
    for point in measurements.measured(campaign):
        if point["settings"]["nodes"] == 2 or point["repetition"] == 0:
            points.append(point)
            if (point["settings"]) == {"nodes": 3, "framework": "horovod"}:
                point["metrics"]["images_per_s"] *= 3
    text = told(analysed(campaign, points))
    assert re.search(r"no difference shows in 1 comparison; the largest is a ratio of [01]\.", text)
    assert "ratio of 3" not in text


def test_figures_of_digits_need_no_split_of_steps(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2]}, job="digits")
    points = [
        measurements.point(
            {"nodes": nodes},
            repetition,
            {"images_per_s": 1000.0 * nodes + repetition, "test_accuracy": 0.98, "loss": 0.1},
        )
        for nodes in (1, 2)
        for repetition in (0, 1)
    ]
    found = analysed(campaign, points)
    assert found.steps == found.stragglers == found.limits == ()
    assert found.series[0].largest.efficiency.value == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"nodes": [1, 3]}, "Throughput goes from 7"),
        ({"nodes": [1, 3], "model": ["resnet18"]}, "Throughput with resnet18 goes from 7"),
        ({"nodes": [1, 3], "model": ["a", "b"]}, "Throughput with [ab] goes from 7"),
    ],
)
def test_sentences_name_what_tells_series_apart(analysed, factors, said):
    text = told(analysed(measurements.document(factors=factors)))
    assert re.search(said, text)
    assert "all points" not in text
    assert "  " not in text


def test_series_that_scale_alike_are_not_ranked(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2], "batch": [1, 2]}, job="digits")
    points = [
        measurements.point({"nodes": n, "batch": b}, k, {"images_per_s": 10.0 * n * b + 0.01 * k})
        for n in (1, 2)
        for b in (1, 2)
        for k in (0, 1)
    ]
    said = told(analysed(campaign, points))
    assert "not shown to differ" in said
    assert "the worst" not in said


def test_a_job_without_a_rate_has_means_only(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2]}, job="pi")
    points = [measurements.point({"nodes": n}, 0, {"pi": 3.14, "device": "cpu"}) for n in (1, 2)]
    found = analysed(campaign, points)
    assert (found.metric, found.throughput) == ("pi", None)
    assert (found.series, found.comparisons) == ((), ())
    assert found.groups[0].mean("pi") == 3.14


def test_a_bandwidth_is_compared_but_does_not_scale(analysed):
    """As of job allreduce, whose bus bandwidth is that of a link, however many there are."""
    campaign = measurements.document(
        factors={"nodes": [2, 3], "rate": ["100M", "1G"]}, job="allreduce"
    )
    points = [
        measurements.point(
            {"nodes": nodes, "rate": rate},
            repetition,
            {"cpu_percent": 50.0, "busbw_bps": bps + repetition, "links_off": 0},
        )
        for nodes in (2, 3)
        for rate, bps in (("100M", 9.2e7), ("1G", 9.2e8))
        for repetition in range(3)
    ]
    found = analysed(campaign, points)
    assert found.metric == found.throughput == "busbw_bps"
    assert found.series == ()
    assert [one.ratio.value for one in found.comparisons] == pytest.approx([10, 10])
    assert re.search(r"1 Gbit/s gives 10 \(.*\) times the busbw of 100 Mbit/s", told(found))
    assert "The highest busbw is 920 Mbit/s with" in told(found)


def test_a_metric_that_points_were_repeated_for_comes_first(analysed):
    """As in the table of `gpubed bench`; growth is still that of the throughput."""
    campaign = measurements.document()
    campaign["campaign"]["stop"] = {"metric": "step_s", "relative_width": 0.05}
    found = analysed(campaign)
    assert (found.metric, found.throughput) == ("step_s", "images_per_s")
    assert len(found.series) == 4
    document = found.document()
    assert (document["metric"], document["throughput"]) == ("step_s", "images_per_s")


def test_what_failed_and_what_is_missing_is_named(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2, 3]}, repeat=2)
    points = [p for p in measurements.measured(campaign) if p["settings"]["nodes"] != 3]
    points[-1] |= {"status": "failed", "reason": "node-1 does not answer", "metrics": {}}
    found = analysed(campaign, points)
    assert [point.reason for point in found.failed] == ["node-1 does not answer"]
    assert found.missing == ("3 nodes",)
    assert found.groups[1].document()["failed"] == 1
    assert "1 run failed" in told(found)
    assert "1 point of the campaign had not ended yet" in told(found)


def test_a_campaign_without_points_is_an_empty_report(analysed):
    found = analysed(points=[])
    assert told(found).startswith("No point of campaign smoke has ended yet.")
    assert len(found.missing) == 12


def test_what_is_no_number_is_in_no_mean(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2]}, repeat=2)
    odd = [math.nan, math.inf, 1e300, True, "12", None, [1], {}]
    points = [
        measurements.point({"nodes": 1 + number % 2}, number, {"images_per_s": value})
        for number, value in enumerate(odd)
    ]
    found = analysed(campaign, points)
    assert all(group.mean("images_per_s") is None for group in found.groups)
    json.dumps(found.document(), allow_nan=False)


def test_all_is_said_of_simulated_gpus(analysed):
    assert told(analysed(measurements.document(simulated=True))).startswith(
        "The GPUs are simulated"
    )


def test_one_point_that_was_simulated_is_enough(analysed):
    campaign = measurements.document(factors={"nodes": [1]}, repeat=1)
    point = measurements.point({"nodes": 1}, 0, {"images_per_s": 5.0, "simulated": True})
    assert analysed(campaign, [point]).measured.simulated


def noisy(seed, factors, repeat=3, sd=0.025, communication=0.0):
    """Return a campaign whose steps differ by chance, and by what its links cost, in seconds."""
    chance = random.Random(seed)
    campaign = measurements.document(f"c{seed}", factors=factors, repeat=repeat)
    points = []
    for values in itertools.product(*factors.values()):
        settings = dict(zip(factors, values, strict=True))
        for number in range(repeat):
            compute = chance.gauss(0.5, sd)
            exposed = communication if settings["nodes"] > 1 else 0.0
            found = {
                "step_s": compute + exposed,
                "compute_s": compute,
                "exposed_communication_s": exposed,
                "data_s": 0.0,
                "images_per_s": settings["nodes"] * 32 / (compute + exposed),
            }
            points.append(measurements.point(settings, number, found))
    return campaign, points


def test_chance_is_not_what_limits(analysed):
    """Steps that differ by 5 % of themselves from run to run, and a link that costs 1 %."""
    kinds = Counter(
        one.kind
        for seed in range(60)
        for one in analysed(*noisy(seed, {"nodes": [1, 3]}, communication=0.005)).limits
    )
    assert kinds["compute"] + kinds["link"] + kinds["other"] <= 6  # 5 % of 60, and luck
    assert "not shown" in kinds
    [one] = analysed(*noisy(100, {"nodes": [1, 3]}, communication=0.2)).limits
    assert one.kind == "link"
    assert one.low < one.seconds < one.high or one.low == one.high == pytest.approx(0.2)


def test_of_two_that_cost_much_the_same_neither_is_named(analysed):
    campaign, points = noisy(3, {"nodes": [1, 3]}, communication=0.2, repeat=5)
    for point in points:
        if point["settings"]["nodes"] == 3:
            data = 0.2 + (point["repetition"] - 2) * 0.01
            point["metrics"]["data_s"] = data
            point["metrics"]["step_s"] += data
    found = analysed(campaign, points)
    assert [one.kind for one in found.limits] == ["not shown"]
    assert "What limits it is not shown in 1 of 1 series" in told(found)


def test_without_repetition_nobody_knows_what_limits(analysed):
    found = analysed(*noisy(4, {"nodes": [1, 3]}, repeat=1, communication=0.3))
    assert [one.kind for one in found.limits] == ["not known"]
    assert (found.limits[0].cause, found.limits[0].low) == ("link", None)
    assert "What limits it is not known without repetitions" in told(found)


def test_series_are_not_ranked_by_chance(analysed):
    factors = {"nodes": [1, 3], "batch_size": [32, 64]}
    ranked = ["the worst" in told(analysed(*noisy(seed, factors))) for seed in range(60)]
    assert sum(ranked) <= 8  # 5 % of 60, and luck
    once = told(analysed(*noisy(1000, factors, repeat=1)))
    assert "the worst" not in once
    assert "the best" not in once


def alarms(analysed, rounds, told_of, factors, **more):
    """Return how many campaigns of noise tell of something that is not there."""
    return sum(bool(told_of(analysed(*noisy(seed, factors, **more)))) for seed in range(rounds))


# Campaigns without a difference; 5 % of them, and luck.
ROUNDS, MOST = 60, 6


def test_of_many_series_none_is_ranked_by_chance(analysed):
    """The highest of many is far from the lowest, whatever they are of."""
    factors = {"nodes": [1, 3], "batch_size": list(range(10))}
    assert alarms(analysed, ROUNDS, lambda found: "the worst" in told(found), factors) <= MOST


@pytest.mark.parametrize("repeat", [3, 5])
def test_of_many_ratios_none_differs_by_chance(analysed, repeat):
    factors = {"nodes": [1, 2], "framework": ["ddp", "horovod"], "precision": ["fp32", "bf16"]}
    factors |= {"batch_size": [32, 64]}
    differ = alarms(
        analysed,
        ROUNDS,
        lambda found: any(one.tells for one in found.comparisons),
        factors,
        repeat=repeat,
    )
    assert differ <= MOST


def test_a_ratio_that_differs_is_found_among_many(analysed):
    factors = {"nodes": [1, 2], "framework": ["ddp", "horovod"], "batch_size": [32, 64, 96, 128]}
    campaign, points = noisy(1, factors, sd=0.005, repeat=5)
    for point in points:
        if point["settings"] == {"nodes": 2, "framework": "horovod", "batch_size": 64}:
            point["metrics"]["images_per_s"] *= 1.1
    found = analysed(campaign, points)
    [sure] = [one for one in found.comparisons if one.tells]
    assert sure.group.settings["batch_size"] == 64
    assert sure.chance.count == len(found.comparisons) == 8
    assert "among 8 comparisons" in told(found)
    assert "1 of 8 such comparisons differs by more than chance" in told(found)


def test_in_many_series_chance_is_not_what_limits(analysed):
    factors = {"nodes": [1, 3], "batch_size": list(range(12))}
    kinds = {"compute", "link", "other", "none"}
    limited = alarms(
        analysed,
        ROUNDS,
        lambda found: any(one.kind in kinds for one in found.limits),
        factors,
        sd=0.05,
    )
    assert limited <= MOST


def test_of_many_ranks_none_is_a_straggler_by_chance(analysed):
    """Ten points, eight ranks each, which differ by 20 % from run to run."""

    def campaign(seed, slow=1.0, repeat=3):
        chance = random.Random(seed)
        factors = {"nodes": [8], "batch_size": list(range(10))}
        points = [
            measurements.point(
                {"nodes": 8, "batch_size": batch},
                number,
                {"ranks": ranks(*(s * chance.lognormvariate(0, 0.2) for s in (*[1] * 7, slow)))},
            )
            for batch in range(10)
            for number in range(repeat)
        ]
        return analysed(measurements.document(f"c{seed}-{slow}", factors, repeat), points)

    named = sum(any(one.slow for one in campaign(seed).stragglers) for seed in range(ROUNDS))
    assert named <= MOST
    assert "node-7 is a straggler at" in told(campaign(1, slow=1.8))


def test_a_host_that_is_slow_at_one_point_only_is_found(analysed):
    campaign = measurements.document(factors={"nodes": [3], "batch_size": [1, 2, 3, 4]}, repeat=5)
    points = [
        measurements.point(
            {"nodes": 3, "batch_size": batch},
            number,
            {"ranks": ranks(0.4, 0.4 + 0.001 * number, 0.6 if batch == 4 else 0.4)},
        )
        for batch in (1, 2, 3, 4)
        for number in range(5)
    ]
    assert "node-2 is a straggler at 1 of 4 points" in told(analysed(campaign, points))


def test_a_ratio_is_never_outside_its_own_interval(analysed):
    """One run that was far faster than the others moves a mean, and not so much its logarithm."""
    points = [
        measurements.point({"compression": kind}, n, {"images_per_s": value})
        for kind, values in {
            "none": [1.0, 1.1, 0.9, 1.05] * 5,
            "fp16": [1.0, 1.1, 0.9, 1.05] * 4 + [1.0, 1.1, 0.9, 1000.0],
        }.items()
        for n, value in enumerate(values)
    ]
    campaign = measurements.document(factors={"compression": ["none", "fp16"]}, repeat=20)
    [one] = analysed(campaign, points).comparisons
    assert one.ratio.low < one.ratio.value < one.ratio.high


def test_the_best_differs_from_all_others_and_not_from_the_next_alone(analysed):
    """The third varies so much that it may be the best as well."""
    values = {1: (5.0, 5.001, 5.002), 2: (4.9, 4.901, 4.902), 3: (2.0, 4.0, 8.0)}
    points = [
        measurements.point({"batch": batch}, n, {"busbw_bps": value})
        for batch, each in values.items()
        for n, value in enumerate(each)
    ]
    campaign = measurements.document(factors={"batch": [1, 2, 3]}, job="allreduce")
    said = told(analysed(campaign, points))
    assert "which that with batch 3 is not shown to differ from" in said


def test_the_best_is_one_only_where_it_differs_from_the_next(analysed):
    speeds = {1: 10.0, 2: 9.99, 3: 5.0}
    points = [
        measurements.point(
            {"nodes": nodes, "batch": batch},
            n,
            {"images_per_s": (10.0 if nodes == 1 else 2 * speed) + 0.1 * n},
        )
        for batch, speed in speeds.items()
        for nodes in (1, 2)
        for n in range(3)
    ]
    campaign = measurements.document(factors={"nodes": [1, 2], "batch": [1, 2, 3]})
    said = told(analysed(campaign, points))
    assert ", among the best of 3 series" in said
    assert ", the worst." in said


def test_the_highest_is_one_only_where_it_is_told_apart(analysed):
    def of(name, spread):
        points = [
            measurements.point({"rate": rate}, n, {"busbw_bps": bps + spread * n})
            for rate, bps in (("100M", 9.2e7), ("1G", 9.3e7))
            for n in range(3)
        ]
        campaign = measurements.document(name, factors={"rate": ["100M", "1G"]}, job="allreduce")
        return told(analysed(campaign, points))

    assert "which that with 100 Mbit/s is not shown to differ from" in of("wide", 1e7)
    assert "not shown to differ from" not in of("narrow", 1e3)


def compressed(analysed, ratios, spreads):
    """Say what is found of fp16 against none, by the ratio of each batch size."""
    points = [
        measurements.point(
            {"compression": kind, "batch_size": batch},
            n,
            {"images_per_s": 100 * (ratio if kind == "fp16" else 1) + (n - 1) * spread},
        )
        for batch, (ratio, spread) in enumerate(zip(ratios, spreads, strict=True), start=1)
        for kind in ("none", "fp16")
        for n in range(3)
    ]
    factors = {"compression": ["none", "fp16"], "batch_size": [1, 2]}
    return " ".join(findings.details(analysed(measurements.document(factors=factors), points)))


def test_the_headline_is_of_a_difference_that_shows(analysed):
    said = compressed(analysed, (1.05, 1.5), (0.5, 60))
    assert "fp16 gives 1.05 (" in said
    assert "1 of 2 such comparisons differs by more than chance" in said


def test_a_halving_is_more_than_two_thirds_on_top(analysed):
    said = compressed(analysed, (0.4, 0.9), (0.5, 0.5))
    assert "fp16 gives 0.4 (" in said


def test_differences_both_ways_are_both_named(analysed):
    said = compressed(analysed, (0.4, 1.7), (0.5, 0.5))
    assert "fp16 gives 0.4 (" in said
    assert "batch 1" in said
    assert "but 1.7 (" in said
    assert "batch 2" in said
    assert "2 of 2 such comparisons differ by more than chance" in said


def test_n_is_of_each_metric_and_what_lacks_the_main_one_has_failed(analysed):
    points = [
        measurements.point({"nodes": nodes}, n, found)
        for nodes in (1, 2)
        for n, found in enumerate(
            (
                {"images_per_s": 100.0, "loss": 1.0, "val_accuracy": 0.5},
                {"images_per_s": 101.0 * nodes, "loss": 2.0},
                {"images_per_s": None, "loss": 4.0},
            )
        )
    ]
    found = analysed(measurements.document(factors={"nodes": [1, 2]}, job="digits"), points)
    assert [group.values("loss") for group in found.groups] == [[1.0, 2.0]] * 2
    assert {point.reason for point in found.failed} == {"it gave no images_per_s"}
    assert len(found.failed) == 2
    [results, *_] = [table for table in tables.made(found) if table.title == "Results"]
    row = dict(zip(results.columns, results.rows[1], strict=True))
    assert row["n"] == "2, 1 failed"
    same = [text for text in (*row.values(), results.note) if "0.5" in text]
    assert same
    assert all("n = 1" in text for text in same)


def test_measured_once_is_what_has_one_value_of_the_main_metric(analysed):
    points = [
        measurements.point({"nodes": 2}, n, {"images_per_s": rate, "loss": 1.0 + n})
        for n, rate in enumerate((100.0, None))
    ]
    found = analysed(measurements.document(factors={"nodes": [2]}, repeat=2), points)
    assert len(found.single) == 1


def test_a_campaign_that_is_half_done_says_so(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2, 3]})
    points = [
        point
        for point in measurements.measured(campaign)
        if point["repetition"] == 0 or point["settings"]["nodes"] == 1
    ]
    found = analysed(campaign, points)
    assert found.missing == ("2 nodes: 1 of 3 repetitions", "3 nodes: 1 of 3 repetitions")
    assert "2 points of the campaign had not ended yet" in told(found)


@pytest.mark.parametrize("written", ["false", False])
def test_what_is_left_out_is_not_missing_however_it_is_written(analysed, written):
    factors = {"overlap": [True, False], "nodes": [1]}
    campaign = measurements.document(factors=factors)
    points = [p for p in measurements.measured(campaign) if p["settings"]["overlap"]]
    campaign["campaign"]["exclude"] = [{"overlap": written, "nodes": 1}]
    assert analysed(campaign, points).missing == ()


def test_it_is_said_where_intervals_did_not_become_narrow(analysed):
    def of(name, width):
        campaign = measurements.document(name, factors={"nodes": [1, 2]})
        campaign["campaign"]["stop"] = {"metric": "images_per_s", "relative_width": width}
        return analysed(campaign)

    wide, narrow = of("wide", 1e-6), of("narrow", 0.5)
    assert "was narrow enough at 0 of 2 points" in told(wide)
    assert "was narrow enough at 2 of 2 points" in told(narrow)


def test_what_stopped_early_is_complete(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2]}, repeat=10)
    campaign["campaign"]["stop"] = {"metric": "images_per_s", "relative_width": 0.5}
    points = [p for p in measurements.measured(campaign) if p["repetition"] < 3]
    assert analysed(campaign, points).missing == ()
