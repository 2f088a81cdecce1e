"""Intervals of means and ratios, against worked examples and against chance."""

import math
import random

import pytest
from scipy import stats

from gpubed.core import intervals


def test_an_interval_is_the_one_of_the_textbook() -> None:
    # n = 3, sd = 1: 4.303 / sqrt(3)
    assert intervals.half_width([9.0, 10.0, 11.0]) == pytest.approx(2.4843, abs=1e-3)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_what_has_no_spread_has_no_interval(values: list[float]) -> None:
    assert intervals.half_width(values) is None


@pytest.mark.parametrize("sd", [0.01, 0.3])
def test_an_interval_has_1_in_it_where_p_is_above_the_level(sd: float) -> None:
    chance = random.Random(3)
    for _ in range(200):
        a, b = ([math.exp(chance.gauss(0, sd)) for _ in range(n)] for n in (3, 4))
        found = intervals.ratio(a, b)
        assert found is not None
        inside = found.low <= 1 <= found.high
        assert (found.p.alone > 0.05) == inside or abs(found.p.alone - 0.05) < 1e-4
        assert found.p.strict >= found.p.alone


def test_a_mean_of_logarithms_is_students() -> None:
    found = intervals.mean_logarithm([math.exp(value) for value in (0.9, 1.0, 1.1)])
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert found.high - found.value == pytest.approx(intervals.half_width([0.9, 1.0, 1.1]))
    assert intervals.mean_logarithm([1.0]) is None
    assert intervals.mean_logarithm([1.0, 0.0]) is None


def test_a_ratio_is_one_of_geometric_means() -> None:
    found = intervals.ratio([100.0, 400.0], [50.0, 200.0])
    assert found is not None
    assert found[0] == pytest.approx(2.0)


def test_a_ratio_turned_round_has_the_inverse_bounds() -> None:
    a, b = [10.0, 11.0, 12.5], [5.0, 5.2, 4.6, 5.5]
    one, other = intervals.ratio(a, b), intervals.ratio(b, a)
    assert one is not None
    assert other is not None
    middle, low, high, p = one
    assert low < middle < high
    assert other[:3] == pytest.approx((1 / middle, 1 / high, 1 / low))
    assert other.p == pytest.approx(p)


@pytest.mark.parametrize(
    ("a", "b"),
    [([1.0], [1.0, 2.0]), ([1.0, 2.0], []), ([0.0, 1.0], [1.0, 2.0]), ([1.0, math.inf], [1, 2])],
)
def test_a_ratio_needs_two_positive_values_on_each_side(a: list[float], b: list[float]) -> None:
    assert intervals.ratio(a, b) is None


def test_19_of_20_intervals_hold_the_truth() -> None:
    chance = random.Random(1)
    rounds, means, ratios = 2000, 0, 0
    for _ in range(rounds):
        a = [math.exp(chance.gauss(math.log(3), 0.1)) for _ in range(4)]
        b = [math.exp(chance.gauss(0, 0.2)) for _ in range(5)]
        plain = [chance.gauss(10, 2) for _ in range(3)]
        half = intervals.half_width(plain)
        found = intervals.ratio(a, b)
        assert half is not None
        assert found is not None
        means += abs(sum(plain) / 3 - 10) <= half
        ratios += found[1] <= 3 <= found[2]
    assert 0.935 <= means / rounds <= 0.965
    assert 0.935 <= ratios / rounds <= 0.985


@pytest.mark.parametrize("mean", [5e-324, 1e-200, 1e-160])
def test_a_deviation_beyond_all_measure_has_no_interval(mean: float) -> None:
    """A report may say anything: the square of sd / mean is no number then."""
    wild, plain = intervals.Sample(mean, 1.0, 3), intervals.Sample(2.0, 0.1, 3)
    assert intervals.ratio_of(plain, wild) is None
    assert intervals.ratio_of(wild, plain) is None


def test_a_difference_is_welchs() -> None:
    a, b = [11.0, 12.0, 13.0], [6.0, 10.0, 2.0]
    found = intervals.difference(a, b)
    assert found is not None
    test = stats.ttest_ind(a, b, equal_var=False)
    assert found[:3] == pytest.approx((6, *test.confidence_interval(0.95)))
    assert found.p.alone == pytest.approx(test.pvalue)
    assert intervals.difference([1.0], [1.0, 2.0]) is None
    assert intervals.difference([2.0, 2.0], [1.0, 1.0]) == (1, 1, 1, (0, 0))
    assert intervals.difference([2.0, 2.0], [1.0, 1.0], compared_with=1.0) == (1, 1, 1, (1, 1))
