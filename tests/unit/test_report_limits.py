"""What a report finds to be what limits a job: the link, compute, data, or what is not shown."""

import pytest

from gpubed.report import tables
from support import measurements
from support.analysed import MOST, ROUNDS, alarms, analysed, noisy, told

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


def test_the_link_s_declared_rate_is_enough_where_it_was_not_measured(analysed):
    campaign = measurements.document(factors={"nodes": [1, 3]}, links=[], rate_bps=1e8)
    found = analysed(campaign)
    alpha = 4 * measurements.ALPHA_S
    assert found.limits[0].least_s == pytest.approx(measurements.allreduce_s(3, "100M") - alpha)


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


def split_on(nodes, **parts):
    """Return a campaign on two numbers of nodes, of whose steps the parts are given for each.

    Repetitions differ in what is computed, a little.
    """
    campaign = measurements.document(factors={"nodes": list(nodes)})
    points = []
    for place, count in enumerate(nodes):
        for number in range(3):
            found = {name: each[place] for name, each in parts.items()}
            found["compute_s"] += 0.0001 * number
            found |= {"step_s": (step := sum(found.values())), "images_per_s": count / step}
            points.append(measurements.point({"nodes": count}, number, found))
    return campaign, points


def test_what_never_grew_is_named_where_it_is_what_a_step_is_made_of(analysed):
    parts = {"data_s": (0.070, 0.071), "exposed_communication_s": (0.004, 0.004)}
    found = analysed(*split_on((1, 10), compute_s=(0.025, 0.025), **parts))
    [one] = found.limits
    assert one.kind == "none"
    assert one.document()["beside_compute"] == {"data_s": pytest.approx(0.071)}
    said = told(found)
    assert "most on 10 nodes; beside compute, a step has waiting for data 70.9 %." in said
    assert "A faster disk" in said
    [limits] = [table for table in tables.made(found) if table.title == "What limits scaling"]
    assert limits.rows[0][-1] == "waiting for data 70.9 %"


@pytest.mark.parametrize(
    ("parts", "kind", "said"),
    [
        ((0.02, 0.05), "link", "more than on 2 nodes, 25 % of a step"),
        ((0.03, 0.03), "none", "Nothing limits scaling much in 1 of 1 series, most on 3 nodes"),
    ],
)
def test_without_one_node_growth_is_from_the_smallest_number_as_efficiency_is(
    analysed, parts, kind, said
):
    parts = {"data_s": (0.0, 0.0), "exposed_communication_s": parts}
    found = analysed(*split_on((2, 3), compute_s=(0.07, 0.07), **parts))
    assert [one.kind for one in found.limits] == [kind]
    assert said in told(found)


def test_without_fewer_nodes_nothing_is_known_to_have_grown(analysed):
    """As of fp16 where `exclude` leaves out one node: compute may have grown as much."""
    parts = {"data_s": (0.0, 0.0), "exposed_communication_s": (0.03, 0.03)}
    found = analysed(*split_on((3,), compute_s=(0.07,), **{k: v[:1] for k, v in parts.items()}))
    assert [(one.kind, one.grown) for one in found.limits] == [("not known", False)]
    said = told(found)
    assert "What limits scaling is not known without fewer nodes to compare with" in said
    assert "limits scaling in" not in said


def test_without_repetition_nobody_knows_what_limits(analysed):
    found = analysed(*noisy(4, {"nodes": [1, 3]}, repeat=1, communication=0.3))
    assert [one.kind for one in found.limits] == ["not known"]
    assert (found.limits[0].cause, found.limits[0].low) == ("link", None)
    assert "What limits scaling is not known without repetitions" in told(found)


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
