"""What a report compares, by which ratio it differs, and whether that is chance."""

import pytest

from gpubed.report import wording
from support import measurements
from support.analysed import analysed, noisy, told

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
