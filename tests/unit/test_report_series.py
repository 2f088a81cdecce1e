"""How a report says that a job scales: efficiency, and which series is the best or the worst."""

import pytest

from support import measurements
from support.analysed import analysed, told

__all__ = ["analysed"]


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
