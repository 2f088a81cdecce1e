"""The table of GPUs says what tests kept, and nothing that nobody saw."""

import runpy
from pathlib import Path

import pytest

from support import gpu_results
from support.gpu_results import Cluster

PAGE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "gpu.py"))
H100 = ("H100-SXM5-80GB", "cuda13", "debian-12")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_results, "RESULTS", tmp_path / "results.json")


def test_what_nobody_ran_is_untested():
    assert gpu_results.described(*H100) == "untested"


def test_real_and_simulated_are_told_apart():
    gpu_results.keep(Cluster(*H100, "simulated"), passed=True, seconds=61.2)
    assert gpu_results.described(*H100) == "simulated: passed"
    gpu_results.keep(Cluster(*H100, "real"), passed=False, seconds=5)
    assert gpu_results.described(*H100) == "real: failed; simulated: passed"


def test_what_was_tested_before_a_change_says_so(monkeypatch):
    gpu_results.keep(Cluster(*H100, "real"), passed=True, seconds=5)
    monkeypatch.setattr(Cluster, "digest", "another")
    assert gpu_results.described(*H100) == "real: passed, changed since"


@pytest.mark.parametrize(
    "words",
    [
        "| K80 | cuda12 | 12.6 | no code for compute capability 3.7 |",
        "| V100-SXM2-32GB | cuda13 | 13.2 | no code for compute capability 7.0 |",
        # Volta ends at 580, with the proprietary module; Debian's own branch is older.
        "| V100-SXM2-32GB | cuda12 | 12.6 | 535 distribution, proprietary (",
        # Debian has no Fabric Manager, so the driver comes from NVIDIA, too.
        "| A100-SXM4-80GB | cuda12 | 12.6 | 580 nvidia, open, FM (",
        "| B200-SXM6-180GB | cuda13 | 13.2 | 580 nvidia, open, FM (",
        # Debian 13 has no branch with Fabric Manager that still serves Volta.
        "| V100-SXM3-32GB (DGX-2) | cuda12 | 12.6 | 580 nvidia, proprietary, FM (",
        "| V100-SXM2-32GB and H100-SXM5-80GB | cuda12 | 12.6 | 580 nvidia, ",
        "nvidia: 590: use an image with Debian 12",
    ],
)
def test_rows_follow_from_what_is_known(words):
    assert words in PAGE["page"]()
