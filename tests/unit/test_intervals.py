"""Intervals of means and ratios, against worked examples and against chance."""

import math
import random

import pytest

from gpubed import intervals


def test_an_interval_is_the_one_of_the_textbook() -> None:
    # n = 3, sd = 1: 4.303 / sqrt(3)
    assert intervals.half_width([9.0, 10.0, 11.0]) == pytest.approx(2.4843, abs=1e-3)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_what_has_no_spread_has_no_interval(values: list[float]) -> None:
    assert intervals.half_width(values) is None


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert intervals.half_width([5.0, 5.0, 5.0]) == 0


def test_quantiles_fall_and_go_over_into_the_expansion() -> None:
    quantiles = [intervals._quantile(freedom) for freedom in range(1, 200)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert intervals._quantile(40) == pytest.approx(2.0211, abs=1e-4)
    assert intervals._quantile(120) == pytest.approx(1.9799, abs=1e-4)


def test_a_ratio_is_one_of_geometric_means() -> None:
    found = intervals.ratio([200.0, 200.0], [100.0, 100.0])
    assert found == pytest.approx((2.0, 2.0, 2.0))


def test_a_ratio_turned_round_has_the_inverse_bounds() -> None:
    a, b = [10.0, 11.0, 12.5], [5.0, 5.2, 4.6, 5.5]
    one, other = intervals.ratio(a, b), intervals.ratio(b, a)
    assert one is not None
    assert other is not None
    middle, low, high = one
    assert low < middle < high
    assert other == pytest.approx((1 / middle, 1 / high, 1 / low))


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


def test_what_is_left_of_values_gives_nearly_the_same_ratio():
    """The delta method, where values vary by a few per cent."""
    a, b = [103.0, 100.0, 98.0, 101.0], [51.0, 50.0, 49.5]
    exact = intervals.ratio(a, b)
    told = intervals.ratio_of(intervals.sample(a), intervals.sample(b))
    assert told == pytest.approx(exact, rel=0.003)


def test_single_values_and_none_have_no_ratio_of_what_is_left():
    one, two = intervals.sample([1.0]), intervals.sample([1.0, 2.0])
    assert one == intervals.Sample(1.0, None, 1)
    assert intervals.sample([]) is None
    assert intervals.ratio_of(one, two) is None
    assert intervals.ratio_of(two, intervals.sample([-1.0, -2.0])) is None
    same = intervals.sample([2.0, 2.0])
    assert intervals.ratio_of(same, same) == (1, 1, 1)
