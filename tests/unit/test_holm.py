"""Holm's correction, against his own example and against chance."""

import math
import random

import pytest

from gpubed.core import holm, intervals
from gpubed.core.intervals import P


def test_a_family_is_corrected_as_by_hand() -> None:
    found = holm.corrected([P(0.01, 0.01), P(0.02, 0.04), None, P(0.03, 0.03), P(0, 0.005)])
    assert [one and round(one.corrected, 6) for one in found] == [0.03, 0.06, None, 0.06, 0.02]
    assert {one.count for one in found if one} == {4}
    assert [one and one.is_significant for one in found] == [True, False, None, False, True]
    assert [one and one.lost_by_correction for one in found] == [False, True, None, True, False]


def test_one_comparison_is_what_it_is_by_itself() -> None:
    assert holm.corrected([P(0.04, 0.3)]) == [holm.Chance(0.04, 0.04, 1)]
    assert holm.corrected([None, P(0.9, 0.9), P(0.8, 0.8)])[1:] == [
        holm.Chance(0.9, 1.0, 2),
        holm.Chance(0.8, 1.0, 2),
    ]
    assert holm.corrected([]) == []


@pytest.mark.parametrize(
    ("count", "repetitions", "sds"), [(12, (3, 3), (0.02, 0.1)), (12, (2, 5), (0.05, 0.01))]
)
@pytest.mark.parametrize("shared", [False, True], ids=["own baseline", "one baseline"])
def test_19_of_20_families_without_a_difference_tell_none(
    count: int, repetitions: tuple[int, int], sds: tuple[float, float], shared: bool
) -> None:
    """Also where all have one baseline, and where one side varies more and was measured less."""
    chance, rounds, alarms = random.Random(count), 200, 0

    def sample(side: int) -> list[float]:
        return [math.exp(chance.gauss(0, sds[side])) for _ in range(repetitions[side])]

    for _ in range(rounds):
        baseline = sample(0)
        ratios = [
            intervals.ratio(sample(1), baseline if shared else sample(0)) for _ in range(count)
        ]
        found = holm.corrected([one and one.p for one in ratios])
        alarms += any(one and one.is_significant for one in found)
    assert alarms / rounds <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / rounds)
