"""Whom a report names as a straggler, and whom it does not."""

import random

import pytest

from support import measurements
from support.analysed import MOST, ROUNDS, analysed, told

__all__ = ["analysed"]


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
