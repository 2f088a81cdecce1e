"""What a report makes of a campaign's points: means of figures, what failed, what is missing."""

import pytest

from support import measurements
from support.analysed import analysed, told

__all__ = ["analysed"]


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
        (A_POINT, {"repetition": 50}, "the campaign has 3 repetition(s), numbered from 0"),
        (A_POINT, {"id": "other"}, "its settings are those of nodes-2.batch_size-32.rate-1G"),
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
