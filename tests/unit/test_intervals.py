"""Intervals of means and ratios, against worked examples and against chance."""

import math
import random

import pytest

from gpubed.core import intervals


def test_an_interval_is_the_one_of_the_textbook() -> None:
    # n = 3, sd = 1: 4.303 / sqrt(3)
    assert intervals.half_width([9.0, 10.0, 11.0]) == pytest.approx(2.4843, abs=1e-3)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 29, 30, 31, 120, 1000])
def test_the_p_value_at_a_quantile_is_that_of_the_level(freedom: int) -> None:
    assert intervals._beyond(intervals._quantile(freedom), freedom) == pytest.approx(0.05, abs=1e-4)


def test_p_values_are_those_of_tables() -> None:
    # Student's t, upper critical values of NIST/SEMATECH section 1.3.6.7.2: columns 0.90, 0.999.
    for t, freedom, p in ((6.314, 1, 0.1), (2.015, 5, 0.1), (5.893, 5, 0.002), (3.385, 30, 0.002)):
        assert intervals._beyond(t, freedom) == pytest.approx(p, rel=2e-3)
    assert intervals._beyond(0, 7) == 1
    assert intervals._beyond(1e300, 7) == pytest.approx(0, abs=1e-12)
    assert intervals._beyond(1.95996, 10**6) == pytest.approx(0.05, abs=1e-5)


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


def test_a_quotient_is_told_from_what_it_is_multiplied_to() -> None:
    half, one = [0.5, 0.51, 0.49], [1.0, 1.01, 0.98]
    found = intervals.quotient([half], [one], times=2)
    assert found is not None
    assert found.low < 1 < found.high
    assert found.p.alone > 0.05


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
    assert told[:3] == pytest.approx(exact[:3], rel=0.003)
    assert told.p == pytest.approx(exact.p, rel=0.05)


def test_a_difference_is_welchs() -> None:
    # Example of unequal variances, worked by hand: 1/3 and 16/3 of variance over 3 values each.
    found = intervals.difference([11.0, 12.0, 13.0], [6.0, 10.0, 2.0])
    assert found is not None
    squares = 1 / 3, 16 / 3
    freedom = sum(squares) ** 2 / sum(one**2 / 2 for one in squares)
    assert int(freedom) == 2
    width = 4.303 * math.sqrt(sum(squares))
    assert found[:3] == pytest.approx((6, 6 - width, 6 + width))
    t = 6 / math.sqrt(sum(squares))  # of two degrees of freedom, p has a closed form
    assert found.p.alone == found.p.strict == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert intervals.difference([1.0], [1.0, 2.0]) is None
    assert intervals.difference([2.0, 2.0], [1.0, 1.0]) == (1, 1, 1, (0, 0))
    assert intervals.difference([2.0, 2.0], [1.0, 1.0], compared_with=1.0) == (1, 1, 1, (1, 1))


def test_a_quotient_of_ratios_holds_the_truth_19_of_20_times() -> None:
    chance = random.Random(2)
    held = 0
    for _ in range(2000):
        sets = [[math.exp(chance.gauss(0, sd)) for _ in range(3)] for sd in (0.1, 0.05, 0.1, 0.05)]
        found = intervals.quotient(sets[:2], sets[2:])
        assert found is not None
        held += found[1] <= 1 <= found[2]
    assert 0.935 <= held / 2000 <= 0.985
