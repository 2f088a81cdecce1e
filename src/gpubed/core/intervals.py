"""95 % confidence intervals of means, and of ratios of means, from few repetitions.

Assumes independent and roughly normal values (for a ratio: logarithms); keeps outliers.
An interval and its p value are for one comparison; `holm` corrects the p values of several.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_WIDE = 10


class P(NamedTuple):
    """The p value of a difference, for each of two degrees of freedom.

    Attributes:
        alone: With Welch's degrees of freedom, as the interval.
        strict: With those of the smallest set of values, for the correction of several comparisons:
            Welch's may be too high by chance, which makes small p values too small.
    """

    alone: float
    strict: float


class Estimate(NamedTuple):
    """A value with its 95 % interval and the two-sided p value of its difference."""

    value: float
    low: float
    high: float
    p: P


def tells_size(low: float, high: float) -> bool:
    """Return whether a ratio's interval is narrower than a factor of ten."""
    return low > 0 and high < _WIDE * low


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the mean's 95 % interval; None for one value or non-finite ones."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return half_width_of(statistics.stdev(values), len(values))


def half_width_of(sd: float, n: int) -> float:
    """Return the half width for the sample standard deviation of n values (at least 2)."""
    return _quantile(n - 1) * sd / math.sqrt(n)


def ratio(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Return the ratio of the geometric means; see `quotient`."""
    return quotient([a], [b])


def quotient(
    above: Sequence[Sequence[float]], below: Sequence[Sequence[float]], *, times: float = 1.0
) -> Estimate | None:
    """Return a quotient of products of geometric means, compared with 1.

    Computes Welch's interval of the sum of the sets' mean logarithms, with Satterthwaite's degrees
    of freedom (Biometrics Bulletin 2 (1946), 110-114).

    Sets of values, `above` and `below` the line, must be independent: leave out a set that is in
    both. The factor `times` is applied before the comparison. None if a set has fewer than two
    values, or only equal ones (computed from a seed, so not a random sample); if a value is not
    positive and finite; or if a bound is not a number.
    """
    sets = [*above, *below]
    if any(len(values) < 2 or len(set(values)) < 2 for values in sets):
        return None
    if not all(0 < value < math.inf for values in sets for value in values):
        return None
    logs = [[math.log(value) for value in values] for values in sets]
    means = list(map(statistics.fmean, logs))
    middle = sum(means[: len(above)]) - sum(means[len(above) :]) + math.log(times)
    return _exp(_welch(middle, list(map(_spread, logs))))


def difference(
    a: Sequence[float], b: Sequence[float], *, compared_with: float = 0.0
) -> Estimate | None:
    """Return the difference of two means, by Welch's test against `compared_with`.

    None for fewer than two values on a side, or if one is not finite.
    """
    if min(len(a), len(b)) < 2 or not all(map(math.isfinite, (*a, *b))):
        return None
    middle = statistics.fmean(a) - statistics.fmean(b)
    return _welch(middle, [_spread(a), _spread(b)], compared_with)


def mean_logarithm(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the logarithms, by Student's t against 0.

    None for fewer than two values, or if one is not positive and finite.
    """
    if len(values) < 2 or not all(0 < value < math.inf for value in values):
        return None
    logs = [math.log(value) for value in values]
    return _welch(statistics.fmean(logs), [_spread(logs)])


def _spread(values: Sequence[float]) -> tuple[float, int]:
    return statistics.variance(values), len(values)


def _welch(
    middle: float, sets: Sequence[tuple[float, int]], compared_with: float = 0.0
) -> Estimate:
    """Return a sum of means with its interval; `sets` has the variance and count of each."""
    squares = [(variance / count, count) for variance, count in sets]
    whole, off = sum(square for square, _ in squares), abs(middle - compared_with)
    if not whole:
        certain = 0.0 if off else 1.0
        return Estimate(middle, middle, middle, P(certain, certain))
    # Shares of the whole, because their squares neither underflow nor overflow.
    freedom = 1 / sum((square / whole) ** 2 / (count - 1) for square, count in squares)
    error = math.sqrt(whole)
    width, fewest = _quantile(freedom) * error, min(count for _, count in sets) - 1
    p = P(*(_beyond(off / error, each) for each in (freedom, fewest)))
    return Estimate(middle, middle - width, middle + width, p)


def _exp(logarithm: Estimate) -> Estimate | None:
    try:
        value, low, high = map(math.exp, logarithm[:3])
    except OverflowError:
        return None
    return Estimate(value, low, high, logarithm.p)


@dataclass(frozen=True)
class Sample:
    """Mean, sample standard deviation (n - 1; None for a single value) and count of values."""

    mean: float
    sd: float | None
    n: int


def sample(values: Sequence[float]) -> Sample | None:
    """Summarize values; None if there are none."""
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Sample(statistics.fmean(values), sd, len(values))


def ratio_of(a: Sample, b: Sample) -> Estimate | None:
    """Return the ratio of two means like `ratio`, from their summaries.

    Approximates the standard deviation of the logarithms by sd / mean (the delta method), good for
    deviations of a few per cent. None for fewer than two values on a side, a deviation of zero, a
    mean that is not positive, or a bound that is not a number.
    """
    if not (a.sd and b.sd and min(a.n, b.n) > 1 and min(a.mean, b.mean) > 0):
        return None
    middle = math.log(a.mean) - math.log(b.mean)
    try:
        squares = [(a.sd / a.mean) ** 2, (b.sd / b.mean) ** 2]
    except OverflowError:
        return None
    if not all(map(math.isfinite, squares)):  # a division overflows without an error
        return None
    return _exp(_welch(middle, list(zip(squares, (a.n, b.n), strict=True))))


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit  # takes a second to import

    return float(stdtrit(freedom, 0.975))


def _beyond(t: float, freedom: float) -> float:
    """Return the two-sided p value of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -t))
