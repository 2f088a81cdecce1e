"""Measured storage is judged against what the specification expects."""

import pytest

from gpubed.checks import storage
from gpubed.spec.sections import Throughput


@pytest.mark.parametrize(("measured", "result"), [(1e9, "pass"), (2e9, "pass"), (9e8, "fail")])
def test_a_rate_below_its_floor_fails(measured, result):
    check = storage.rate("storage.read", "node-0", measured, Throughput(read="1 Gbit/s").read)
    assert (check.result, bool(check.reason)) == (result, result == "fail")
    assert check.limit == "≥ 1 Gbit/s"


@pytest.mark.parametrize(("measured", "result"), [(0.01, "pass"), (0.021, "fail")])
def test_a_latency_above_its_ceiling_fails(measured, result):
    check = storage.latency("node-0", measured, Throughput(latency="20 ms").latency)
    assert (check.result, check.value) == (result, measured * 1e3)
