"""How a report says that a job scales: efficiency, and which series is the best or the worst."""

import pytest

from gpubed.report import tables
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


def test_an_efficiency_of_too_few_runs_says_so_instead_of_an_interval(analysed):
    """Two repetitions of which one was twice as fast: 18.9 %, from 6e-05 % to 6e+06 %."""
    rates = {1: (51.1, 6.6), 2: (6.85, 7.34)}
    points = [
        measurements.point({"nodes": nodes}, n, {"images_per_s": rate})
        for nodes, each in rates.items()
        for n, rate in enumerate(each)
    ]
    found = analysed(measurements.document(factors={"nodes": [1, 2]}, repeat=2), points)
    assert found.series[0].largest.efficiency.high > 1000
    assert "against 1 node: 19.3 % (too few runs for an interval)" in told(found)
    assert "e+0" not in told(found)
    results = tables.made(found)[0]
    assert results.rows[0][2] == "28.85 ± 280"


def test_on_nodes_of_unequal_ranks_efficiency_counts_these(analysed):
    """Nodes of 2, 4 and 4 ranks, which lose a tenth where there are several."""
    slots = (2, 4, 4)
    nodes = [{"name": f"node-{number}", "slots": each} for number, each in enumerate(slots)]
    campaign = measurements.document(factors={"nodes": [1, 2, 3]}, nodes=nodes)
    points = []
    for count in (1, 2, 3):
        ranks = sum(slots[:count])
        for number in range(3):
            rate = 10.0 * ranks * (0.9 if count > 1 else 1.0) + 0.01 * number
            found = {"images_per_s": rate, "world_size": ranks}
            points.append(measurements.point({"nodes": count}, number, found))
    found = analysed(campaign, points)
    [series] = found.series
    assert [one.efficiency.value for one in series.points[1:]] == pytest.approx([0.9] * 2, 1e-3)
    assert [one.ideal for one in series.points] == pytest.approx([20.01, 60.03, 100.05])
    assert "Nodes have from 2 to 4 ranks: linear growth and efficiency count ranks" in told(found)
    for point in points:
        del point["metrics"]["world_size"]
    untold = analysed({**campaign, "name": "untold"}, points)
    assert untold.series == ()
    assert "where that is missing, there are none" in told(untold)


def test_it_is_said_where_the_smallest_points_ran(analysed):
    found = analysed()
    assert "Efficiency is measured against node-0, where" in told(found)
    assert found.document()["efficiency"][0]["baseline"]["hosts"] == ["node-0"]
    two = analysed(measurements.document("two", factors={"nodes": [2, 3]}))
    assert "against node-0, node-1, where" in told(two)
    once = analysed(measurements.document("once", factors={"nodes": [1]}))
    assert "Efficiency is measured against" not in told(once)
