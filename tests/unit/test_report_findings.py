"""What a report finds in campaigns of which it is known what there is to find."""

import itertools
import random

import pytest

from gpubed.core.paths import Project
from gpubed.report import analysis, read, summary, wording
from support import measurements


@pytest.fixture
def analysed(tmp_path):
    """A function that analyses a campaign, of which so many points are left out."""

    def analyse(campaign=None, points=None, broken=0):
        campaign = campaign or measurements.document()
        cluster = Project(tmp_path).cluster("lab")
        measurements.write(cluster, campaign, points)
        measured = read.load(cluster, campaign["name"])
        assert len(measured.broken) == broken
        return analysis.analyse(measured)

    return analyse


def told(found):
    return " ".join(summary.told(found))


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


# Campaigns without a difference; 5 % of them, and luck.
ROUNDS, MOST = 20, 4


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
    assert "on 3 nodes against 2 nodes" in told(found)


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


@pytest.mark.parametrize("written", ["false", False])
def test_what_is_left_out_is_not_missing_however_it_is_written(analysed, written):
    factors = {"overlap": [True, False], "nodes": [1]}
    campaign = measurements.document(factors=factors)
    points = [p for p in measurements.measured(campaign) if p["settings"]["overlap"]]
    campaign["campaign"]["exclude"] = [{"overlap": written, "nodes": 1}]
    assert analysed(campaign, points).missing == ()


A_POINT = {"nodes": 2, "batch_size": 32, "rate": "1G"}
NONE_SUCH = "the campaign has no such point"


@pytest.mark.parametrize(
    ("settings", "more", "why"),
    [
        (A_POINT, {"repetition": 50}, "the campaign has 3 repetition(s), from 0"),
        ({**A_POINT, "nodes": 9}, {}, NONE_SUCH),
        ({**A_POINT, "batch_size": "32 "}, {"id": "other"}, NONE_SUCH),
        ({**A_POINT, "more": 1}, {}, NONE_SUCH),
        ({"nodes": 2}, {}, NONE_SUCH),
        ({**A_POINT, "nodes": 3}, {}, NONE_SUCH),
    ],
)
def test_what_is_no_point_of_the_campaign_is_left_out(analysed, settings, more, why):
    """As `bench` refuses it: it would count as a repetition, or as a point of its own."""
    campaign = measurements.document()
    campaign["campaign"]["exclude"] = [{**A_POINT, "nodes": 3}]
    points = list(measurements.measured(campaign))
    stray = measurements.point(settings, 0, points[0]["metrics"]) | more
    found = analysed(campaign, [*points, stray], broken=1)
    assert len(found.groups) == 11
    assert {len(group.points) for group in found.groups} == {3}
    assert [one.reason for one in found.measured.broken] == [f"cannot be read: {why}"]


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
        assert one.tells


@pytest.mark.parametrize(
    ("factor", "values", "pairs"),
    [
        ("overlap", [False, True], {("overlap on", "overlap off")}),
        ("precision", ["bf16", "fp32"], {("precision bf16", "precision fp32")}),
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
    assert "1 of 8 comparisons differs by more than chance" in told(found)


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
    assert "The link limits scaling" in told(found)
    assert "with batch 32, 100 Mbit/s on 3 nodes" in told(found)


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
    assert "Nodes of the local backend share the CPUs of one machine" in told(found)
    elsewhere = analysed({**campaign, "backend": "other"}, points)
    assert "share the CPUs" not in told(elsewhere)
    said = analysed({**campaign, "backend": "other", "one_host": True}, points)
    assert "Nodes of the other backend share the CPUs of one machine" in told(said)
    denied = analysed({**campaign, "one_host": False}, points)
    assert "share the CPUs" not in told(denied)


def test_nothing_limits_what_scales(analysed):
    campaign = measurements.document(factors={"nodes": [1, 3]})
    points = list(measurements.measured(campaign))
    for point in points:
        point["metrics"] |= {"exposed_communication_s": 0.001, "step_s": 0.411, "compute_s": 0.4}
    found = analysed(campaign, points)
    assert [one.kind for one in found.limits] == ["none"]
    assert "Nothing limits scaling much" in told(found)


def test_without_repetition_nobody_knows_what_limits(analysed):
    found = analysed(*noisy(4, {"nodes": [1, 3]}, repeat=1, communication=0.3))
    assert [one.kind for one in found.limits] == ["not known"]
    assert (found.limits[0].cause, found.limits[0].low) == ("link", None)
    assert "What limits scaling is not known without repetitions" in told(found)


def test_a_straggler_is_found_with_its_host(analysed):
    campaign = measurements.document()
    found = analysed(campaign, measurements.measured(campaign, slow=1.5))
    slow = [one for one in found.stragglers if one.group.settings["nodes"] == 3]
    assert {one.host for one in slow} == {"node-2"}
    assert all(one.slow and one.ratio.value == pytest.approx(1.5, rel=0.02) for one in slow)
    fast = [one for one in found.limits if one.series.settings["rate"] == "1G"]
    assert {one.kind for one in fast} == {"stragglers"}
    assert "node-2 is a straggler at 4 of 8 points: at worst, its compute" in told(found)
    assert not any(one.slow for one in analysed(measurements.document("even")).stragglers)


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
    assert "No rank is shown to be a straggler." in told(found)
    assert found.stragglers[0].once == pytest.approx(1.2)


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
