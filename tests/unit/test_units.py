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


def test_sizes_know_binary_and_decimal_prefixes():
    assert units.parse_bytes("1 GiB") == 2**30
    assert units.parse_bytes("1 GB") == 10**9


def test_a_rate_is_written_as_it_is_read():
    assert units.parse_rate(units.format_rate(200e6)) == 200e6
