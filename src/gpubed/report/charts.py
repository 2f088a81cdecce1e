"""The kinds of charts: lines over nodes, stacked bars, rows of ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubed.report.svg import WIDTH, Figure

_LEFT, _RIGHT, _TOP, _PLOT = 76, 24, 16, 300
_ROW, _LEGEND_ROW, _LABEL = 24, 20, 330
_CHARACTER = 6.9  # pixels, about, of 13 pixel text
_TICKS = 5
_NOTHING = 1e-30  # smaller values have no logarithm that could be computed with
_SPREAD = 7  # pixels between the intervals of two series


@dataclass(frozen=True)
class Mark:
    """A measured value and its interval; no bounds where it was measured once."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A series of marks; `ideal` is the line that it would be on."""

    label: str
    marks: tuple[Mark, ...]
    ideal: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Bar:
    """A row of parts that are put beside each other."""

    label: str
    parts: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row with one value and its interval."""

    label: str
    mark: Mark
    kind: int = 0


@dataclass(frozen=True)
class _Scale:
    """Turns values into pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1)
        return self.start + share * (self.end - self.start)


def ticks(most: float, least: float = 0.0) -> list[float]:
    """Return round values from below `least` to above `most`, some five of them."""
    span = max(most - least, abs(most) * 0.02)
    if not span > _NOTHING:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(span / _TICKS))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if s * power * _TICKS >= span)
    first = math.floor(least / step * (1 + 1e-9))
    last = max(math.ceil(most / step * (1 - 1e-9)), first + 1)
    return [step * number for number in range(first, last + 1)]


def lines(
    name: str, title: str, description: str, y_title: str, x_title: str, series: Sequence[Line]
) -> Figure:
    """Draw series over the number of nodes; `y_title` has the unit."""
    marks = [mark for line in series for mark in line.marks]
    tops = [m.y if m.high is None else m.high for m in marks]
    middles = [m.y for m in marks] + [y for line in series for _, y in line.ideal]
    values = ticks(_most([*tops, *middles], middles))
    xs = sorted({mark.x for mark in marks} | {x for line in series for x, _ in line.ideal})
    legend = _TOP + _PLOT + 62
    figure = Figure(name, title, description, legend + _LEGEND_ROW * len(series) + 8)
    margin = max(0.5, (xs[-1] - xs[0]) * 0.06) if xs else 0.5
    x = _Scale(xs[0] - margin, xs[-1] + margin, _LEFT, WIDTH - _RIGHT)
    y = _Scale(0, values[-1], _TOP + _PLOT, _TOP)
    for value in values:
        figure.line(_LEFT, y(value), WIDTH - _RIGHT, y(value), "grid")
        figure.text(_LEFT - 8, y(value) + 4, f"{value:.5g}", "soft", text_anchor="end")
    for value in _apart(xs, x):
        figure.text(x(value), _TOP + _PLOT + 20, f"{value:g}", "soft", text_anchor="middle")
    figure.line(_LEFT, _TOP + _PLOT, WIDTH - _RIGHT, _TOP + _PLOT, "axis")
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    figure.text(middle, _TOP + _PLOT + 42, x_title, text_anchor="middle")
    center = _TOP + _PLOT / 2
    turned = f"rotate(-90 18 {center:g})"
    figure.text(18, center, y_title, text_anchor="middle", transform=turned)
    for number, line in enumerate(series):
        _draw(figure, line, number, x, y, (number - (len(series) - 1) / 2) * _SPREAD)
        row = legend + _LEGEND_ROW * number
        figure.path([(_LEFT, row), (_LEFT + 36, row)], "line", number)
        figure.marker(_LEFT + 18, row, number)
        figure.text(_LEFT + 46, row + 4, _short(line.label, WIDTH - _LEFT - 60))
    return figure


def _draw(figure: Figure, line: Line, number: int, x: _Scale, y: _Scale, aside: float) -> None:
    if len(line.ideal) > 1:
        figure.path([(x(a), y(b)) for a, b in line.ideal], "ideal", number)
    figure.path([(x(m.x) + aside, y(m.y)) for m in line.marks], "line", number)
    for mark in line.marks:
        if mark.low is not None and mark.high is not None:
            (low, high), ends = _within(mark.low, mark.high, y)
            place = x(mark.x) + aside
            figure.error(place, y(low), place, y(high), number, ends)
        figure.marker(x(mark.x) + aside, y(mark.y), number, hollow=mark.low is None)


def _apart(values: Sequence[float], scale: _Scale) -> list[float]:
    """Leave out values whose labels would touch the one before."""
    kept: list[float] = []
    for value in values:
        if not kept or scale(value) - scale(kept[-1]) >= 34:
            kept.append(value)
    return kept


def stacked(
    name: str, title: str, description: str, parts: Sequence[str], bars: Sequence[Bar]
) -> Figure:
    """Draw rows of shares; each is as wide as the others, and its note says of how much."""
    top = _TOP + _LEGEND_ROW + 14
    figure = Figure(name, title, description, top + _ROW * len(bars) + 34)
    x = _Scale(0, 1, _LABEL, WIDTH - 92)
    place = float(_TOP)
    for kind, part in enumerate(parts):
        figure.box(place, _TOP, 16, 14, figure.pattern(kind))
        figure.text(place + 22, _TOP + 12, part)
        place += 52 + len(part) * _CHARACTER
    for number, bar in enumerate(bars):
        row, start = top + number * _ROW, 0.0
        whole = sum(bar.parts) or 1.0
        label = _short(bar.label, _LABEL - 20)
        figure.text(_LABEL - 10, row + 14, label, text_anchor="end")
        for kind, share in enumerate(part / whole for part in bar.parts):
            if share > 0:
                figure.box(x(start), row, x(share) - x(0), _ROW - 6, figure.pattern(kind))
                start += share
        figure.text(WIDTH - 84, row + 14, bar.note)
    _share_axis(figure, x, top, top + _ROW * len(bars))
    return figure


def _share_axis(figure: Figure, x: _Scale, top: float, bottom: float) -> None:
    for value in (0, 0.25, 0.5, 0.75, 1):
        figure.line(x(value), bottom - 2, x(value), bottom + 3, "axis")
        figure.text(x(value), bottom + 18, f"{value * 100:g} %", "soft", text_anchor="middle")
    figure.line(x(0), top - 4, x(0), bottom, "axis")


def ratios(
    name: str, title: str, description: str, x_title: str, kinds: Sequence[str], rows: Sequence[Row]
) -> Figure:
    """Draw ratios with their intervals, and a line at 1, where there is no difference."""
    top = _TOP + (_LEGEND_ROW * len(kinds) if len(kinds) > 1 else 0)
    bottom = top + _ROW * len(rows) + 6
    figure = Figure(name, title, description, bottom + 48)
    tops = [r.mark.x if r.mark.high is None else r.mark.high for r in rows]
    bottoms = [r.mark.x if r.mark.low is None else r.mark.low for r in rows]
    most = _most([*tops, 1.0], [1.0, *(row.mark.x for row in rows)])
    values = ticks(most, least=max(0.0, min([*bottoms, 1.0])))
    x = _Scale(values[0], values[-1], _LABEL, WIDTH - _RIGHT)
    for kind, label in enumerate(kinds if len(kinds) > 1 else ()):
        figure.marker(_TOP + 6, _TOP + 2 + kind * _LEGEND_ROW, kind)
        figure.text(_TOP + 20, _TOP + 6 + kind * _LEGEND_ROW, label)
    for value in values:
        figure.line(x(value), top, x(value), bottom, "grid")
        figure.text(x(value), bottom + 18, f"{value:.4g}", "soft", text_anchor="middle")
    figure.line(x(1), top, x(1), bottom, "reference")
    middle = (_LABEL + WIDTH - _RIGHT) / 2
    figure.text(middle, bottom + 38, x_title, text_anchor="middle")
    for number, row in enumerate(rows):
        y, mark = top + number * _ROW + _ROW / 2, row.mark
        label = _short(row.label, _LABEL - 20)
        figure.text(_LABEL - 10, y + 4, label, text_anchor="end")
        if mark.low is not None and mark.high is not None:
            (low, high), ends = _within(mark.low, mark.high, x)
            figure.error(x(low), y, x(high), y, row.kind, ends)
        figure.marker(x(mark.x), y, row.kind, hollow=mark.low is None)
    return figure


def _most(tops: Sequence[float], values: Sequence[float]) -> float:
    """Return how far an axis goes.

    One interval that is far too wide, as that of two repetitions may be, must not hide the rest.
    """
    top, largest = max(tops, default=1.0), max(values, default=0.0)
    return min(top, 3 * largest) if largest > 0 else top


def _within(low: float, high: float, axis: _Scale) -> tuple[tuple[float, float], tuple[bool, bool]]:
    """Return what an axis shows of an interval, and which of its ends are there."""
    shown = max(axis.low, low), min(high, axis.high)
    return shown, (shown[0] == low, shown[1] == high)


def _short(label: str, pixels: float) -> str:
    most = int(pixels / _CHARACTER)
    return label if len(label) <= most else f"{label[: most - 1]}…"
