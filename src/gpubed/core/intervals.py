"""95 % confidence intervals of means, and of ratios of means, from few repetitions.

Values are taken as independent and roughly normal (their logarithms, for a ratio). Nothing
here knows what was measured, and no outlier is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: What is to be said under many intervals of 95 %, as none is corrected for the others.
ONE_OF_TWENTY = "of twenty without a difference, one tells one"
# Student's t, 97.5 % quantile for 1 to 30 degrees of freedom: NIST/SEMATECH e-Handbook of
# Statistical Methods, section 1.3.6.7.2 (columns 0.975 of the upper critical values).
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
# Beyond, Cornish and Fisher's expansion z + a/df + b/df²: off by less than 0.0001.
_Z, _A, _B = 1.95996, 2.37227, 2.82250


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the mean's 95 % interval, in the unit of the values.

    Returns:
        None for fewer than two values, or where one is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float] | None:
    """Return how many times as large `a` is as `b`, and the bounds of the 95 % interval.

    Geometric means are compared: Welch's interval of the difference of the logarithms.

    Returns:
        The ratio, its lower and its upper bound; see `quotient` for where there is none.
    """
    return quotient([a], [b])


def quotient(
    above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]
) -> tuple[float, float, float] | None:
    """Return a product of geometric means over another, and the bounds of the 95 % interval.

    Welch's interval with the degrees of freedom of Satterthwaite (Biometrics Bulletin 2 (1946),
    110-114), for a sum of as many means of logarithms as there are sets of values.

    Args:
        above: Sets of values, each independent of the others.
        below: The same; a set that is also above must be left out of both.

    Returns:
        The quotient, its lower and its upper bound. None for fewer than two values in a set,
        where all values of one are the same, as of what is computed from a seed: that is no
        sample of chance; where one is not positive and finite; and where a bound is no number.
    """
    sets = [*above, *below]
    if any(len(values) < 2 or len(set(values)) < 2 for values in sets):
        return None
    if not all(0 < value < math.inf for values in sets for value in values):
        return None
    logs = [[math.log(value) for value in values] for values in sets]
    means = [statistics.fmean(one) for one in logs]
    middle = sum(means[: len(above)]) - sum(means[len(above) :])
    width = _welch([(statistics.variance(one), len(one)) for one in logs])
    return _powers(middle, width)


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float] | None:
    """Return by how much the mean of `a` is above that of `b`, and Welch's 95 % bounds.

    Returns:
        The difference, its lower and its upper bound, in the unit of the values; None for fewer
        than two values on a side, or where one is not finite.
    """
    if min(len(a), len(b)) < 2 or not all(map(math.isfinite, (*a, *b))):
        return None
    middle = statistics.fmean(a) - statistics.fmean(b)
    width = _welch([(statistics.variance(one), len(one)) for one in (a, b)])
    return middle, middle - width, middle + width


def _welch(sets: Sequence[tuple[float, int]]) -> float:
    """Return half the width of the interval of a sum of means.

    Args:
        sets: Of each mean, the variance of its values and how many there are.
    """
    squares = [(variance / count, count) for variance, count in sets]
    whole = sum(square for square, _ in squares)
    if not whole:
        return 0.0
    # As shares of the whole, whose squares neither vanish nor overflow.
    freedom = 1 / sum((square / whole) ** 2 / (count - 1) for square, count in squares)
    return _quantile(freedom) * math.sqrt(whole)


def _powers(middle: float, width: float) -> tuple[float, float, float] | None:
    """Return what logarithms stand for; None where that is no number."""
    try:
        return math.exp(middle), math.exp(middle - width), math.exp(middle + width)
    except OverflowError:
        return None


@dataclass(frozen=True)
class Sample:
    """What is left of values once they are put together, in their unit.

    Attributes:
        sd: Sample standard deviation (n - 1); None for a single value.
        n: How many values there were.
    """

    mean: float
    sd: float | None
    n: int


def sample(values: Sequence[float]) -> Sample | None:
    """Put values together; None where there are none."""
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Sample(statistics.fmean(values), sd, len(values))


def ratio_of(a: Sample, b: Sample) -> tuple[float, float, float] | None:
    """Return how many times as large the mean of `a` is as that of `b`, and the 95 % bounds.

    As `ratio`, where the values themselves are not there any more: the standard deviation of
    their logarithms is taken for sd / mean (the delta method), good for deviations of a few
    per cent.

    Returns:
        The ratio, its lower and its upper bound; None for fewer than two values on a side, where
        a deviation is zero, a mean is not positive, or a bound is no number.
    """
    if not (a.sd and b.sd and min(a.n, b.n) > 1 and min(a.mean, b.mean) > 0):
        return None
    try:
        width = _welch([((a.sd / a.mean) ** 2, a.n), ((b.sd / b.mean) ** 2, b.n)])
    except OverflowError:
        return None
    return _powers(math.log(a.mean) - math.log(b.mean), width)


def _quantile(freedom: float) -> float:
    # Of a part of a degree of freedom, none: the interval is rather too wide than too narrow.
    whole = max(int(freedom), 1)
    if whole <= len(_T):
        return _T[whole - 1]
    return _Z + _A / whole + _B / whole**2
