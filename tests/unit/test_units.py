"""Quantities are read as people write them, and written as they are read."""

import pytest

from gpubed.core import units


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("200 Mbit/s", 200e6),
        ("10Gbps", 10e9),
        ("1.5 Gbit/s", 1.5e9),
        (1000, 1000),
        ("64 kbit", 64e3),
    ],
)
def test_rates_are_read_in_bits_per_second(text, bps):
    assert units.parse_rate(text) == bps


@pytest.mark.parametrize(
    "text", ["fast", "200 MB/s", "-1 Mbit/s", "", True, None, [], "1 2 Mbit/s"]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="must look like"):
        units.parse_rate(text)


@pytest.mark.parametrize("bps", [200e6, 1e9, 1_000_002_000, 1_234_567_890, 999])
def test_no_digit_of_a_rate_is_lost(bps):
    assert units.parse_rate(units.format_rate(bps)) == bps


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (86400, "1 d"),
        (5400, "90 min"),
        (1800.0, "30 min"),
        (61, "61 s"),
        (0.005, "5 ms"),
        (0, "0 ms"),
    ],
)
def test_a_duration_is_written_in_the_largest_unit_that_fits(seconds, text):
    assert units.format_seconds(seconds) == text
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["3651 d", "9999999 d", 315360001, "87601 h"])
def test_a_duration_is_of_ten_years_at_most(text):
    with pytest.raises(ValueError, match="must be at most 3650 d"):
        units.parse_seconds(text)
