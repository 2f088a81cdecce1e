"""What a report finds to be what limits a job: the link, compute, data, or what is not shown."""

import pytest

from support import measurements
from support.analysed import analysed, noisy, told

__all__ = ["analysed"]


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
