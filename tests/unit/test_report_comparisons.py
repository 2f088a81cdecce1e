"""What a report compares, by which ratio it differs, and whether that is chance."""

import pytest

from gpubed.report import wording
from support import measurements
from support.analysed import MOST, ROUNDS, alarms, analysed, noisy, told

__all__ = ["analysed"]


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
    assert "The highest busbw is 920 Mbit/s with" in told(found)


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
    assert "1 of 8 comparisons differs by more than chance" in told(found)


@pytest.mark.parametrize(
    ("ratios", "repeat", "said"),
    [
        ((1.05, 0.4), 3, "0.4 (95 % interval 0.3"),  # a halving is more than 5 % on top
        ((1.05, 0.4), 3, "2 of 2 comparisons differ by more than chance"),
        ((1.0, 1.0), 3, "0 of 2 comparisons differ by more than chance"),
        ((1.05, 1.5), 1, "1.5 (no interval: not repeated, or the same each time)"),
        ((1.05, 1.5), 1, "0 of 2 comparisons differ by more than chance"),
    ],
)
def test_the_summary_has_the_largest_difference_and_how_many_there_are(
    analysed, ratios, repeat, said
):
    points = [
        measurements.point(
            {"compression": kind, "batch_size": batch},
            n,
            {"images_per_s": 100 * (ratio if kind == "fp16" else 1) + (n - 1) * 0.5},
        )
        for batch, ratio in enumerate(ratios, start=1)
        for kind in ("none", "fp16")
        for n in range(repeat)
    ]
    factors = {"compression": ["none", "fp16"], "batch_size": [1, 2]}
    campaign = measurements.document(factors=factors, repeat=repeat)
    found = told(analysed(campaign, points))
    assert "compression fp16 over compression none: " in found
    assert said in found
