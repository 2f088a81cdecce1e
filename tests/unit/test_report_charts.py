"""Charts: round numbers on axes, whatever is measured; and what cannot be in XML."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubed.report import charts, wording
from gpubed.report.svg import Figure


@given(st.floats(1e-9, 1e12), st.floats(0, 1))
def test_ticks_are_few_and_around_the_values(most, share):
    least = most * share
    found = charts.ticks(most, least)
    assert 2 <= len(found) <= 8
    assert found[0] <= least * (1 + 1e-6)
    assert found[-1] >= most * (1 - 1e-6)


@pytest.mark.parametrize(
    ("most", "found"),
    [(0, [0, 1]), (100, [0, 20, 40, 60, 80, 100]), (7, [0, 2, 4, 6, 8])],
)
def test_ticks_are_round(most, found):
    assert charts.ticks(most) == found


@given(st.text())
def test_whatever_a_name_holds_the_figure_is_xml(text):
    figure = Figure("name", text, text, 10)
    figure.text(0, 0, text)
    ET.fromstring(figure.drawing())


@given(st.lists(st.tuples(st.floats(0, 1e30), st.floats(0, 1e30)), min_size=1, max_size=4))
def test_all_that_is_drawn_has_a_place(pairs):
    marks = tuple(
        charts.Mark(float(n + 1), y, max(0, y - d), y + d) for n, (y, d) in enumerate(pairs)
    )
    rows = [charts.Row("r", charts.Mark(m.y, 0, m.low, m.high)) for m in marks]
    drawn = charts.lines("a", "t", "d", "y", "x", [charts.Line("s", marks)]).drawing()
    drawn += charts.ratios("b", "t", "d", "x", (), rows).drawing()
    assert not re.search(r"\b(nan|inf)\b", drawn.lower())


@pytest.mark.parametrize("kind", ["lines", "ratios"])
def test_an_interval_that_is_far_too_wide_does_not_hide_the_rest(kind):
    """As that of an efficiency of two repetitions on each side: 6e-05 % to 6e+06 %."""
    wide, other = charts.Mark(2, 1.0, 1e-6, 1e6), charts.Mark(3, 1.5, 1.2, 1.8)
    if kind == "lines":
        figure = charts.lines("a", "t", "d", "y", "x", [charts.Line("s", (wide, other))])
    else:
        rows = [charts.Row("r", charts.Mark(m.y, 0, m.low, m.high)) for m in (wide, other)]
        figure = charts.ratios("b", "t", "d", "x", (), rows)
    root = ET.fromstring(figure.drawing())
    numbers = [float(one.text) for one in root.findall(".//{*}text") if one.text[0].isdigit()]
    assert 1.5 < max(numbers) <= 6
    # Each has its line and two ends, but for the one that is beyond the figure.
    assert sum(one.get("class") == "error" for one in root.findall(".//{*}line")) == 3 + 2


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("100M", 1e8),
        ("10 Gbit/s", 1e10),
        ("1G", 1e9),
        (200_000_000, 2e8),
        ("fast", None),
        (0, None),
    ],
)
def test_rates_are_read_as_campaigns_write_them(text, bps):
    assert wording.rate(text) == bps


@pytest.mark.parametrize(
    ("name", "unit", "heading"),
    [
        ("images_per_s", "images/s", "throughput"),
        ("exposed_communication_s", "s", "exposed communication"),
        ("images_per_s_sd", "images/s", "images per s sd"),
        ("images_per_s_per_rank", "images/s", "throughput per rank"),
        ("step_sd_s", "s", "step sd"),
        ("gradient_bytes", "B", "gradient"),
        ("loss", "", "loss"),
    ],
)
def test_metrics_are_named_with_their_unit(name, unit, heading):
    assert (wording.unit(name), wording.metric(name)) == (unit, heading)
