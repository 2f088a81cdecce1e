"""What a report makes of a campaign's points: means of figures, what failed, what is missing."""

import pytest

from gpubed.report import page, tables
from support import measurements
from support.analysed import analysed, told

__all__ = ["analysed"]


def test_a_job_without_a_rate_has_means_only(analysed):
    campaign = measurements.document(factors={"nodes": [1, 2]}, job="pi")
    points = [measurements.point({"nodes": n}, 0, {"pi": 3.14, "device": "cpu"}) for n in (1, 2)]
    found = analysed(campaign, points)
    assert (found.metric, found.throughput) == ("pi", None)
    assert (found.series, found.comparisons) == ((), ())
    assert found.groups[0].mean("pi") == 3.14


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


def test_it_is_said_where_intervals_did_not_become_narrow(analysed):
    def of(name, width):
        campaign = measurements.document(name, factors={"nodes": [1, 2]})
        campaign["campaign"]["stop"] = {"metric": "images_per_s", "relative_width": width}
        return analysed(campaign)

    wide, narrow = of("wide", 1e-6), of("narrow", 0.5)
    assert "it was at 0 of 2 points" in told(wide)
    assert "it was at 2 of 2 points" in told(narrow)


def test_the_versions_that_runs_computed_with_are_told(analysed):
    campaign = measurements.document(factors={"framework": ["ddp", "horovod"]})
    ddp = {"torch": "2.4.0", "cuda": None}
    by_framework = {"ddp": ddp, "horovod": {**ddp, "horovod": "0.28.1"}}
    points = [
        measurements.point({"framework": name}, number, {"images_per_s": 5.0, "versions": told})
        for name, told in by_framework.items()
        for number in range(3)
    ]
    points[-1]["metrics"]["versions"] = {"torch": "2.5.1", "horovod": "0.28.1"}
    points[0] |= {"status": "failed", "reason": "node-1 does not answer"}
    found = analysed(campaign, points)
    assert found.document()["versions"] == [
        {"name": "torch", "version": "2.4.0", "runs": 4, "of": 5},
        {"name": "torch", "version": "2.5.1", "runs": 1, "of": 5},
        {"name": "horovod", "version": "0.28.1", "runs": 3, "of": 5},
    ]
    software = "torch 2.4.0 (4 of 5 runs), torch 2.5.1 (1 of 5 runs), horovod 0.28.1 (3 of 5 runs)"
    assert f"<dd>{software}</dd>" in page.html(found, {})
    none = page.html(analysed(measurements.document("other")), {})
    assert "<dt>software of the job</dt><dd>not known</dd>" in none
