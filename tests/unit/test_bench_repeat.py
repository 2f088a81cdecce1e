"""A report's campaign is run again, elsewhere (docs/how-to/report.md). Jobs are a STAND-IN."""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import repeat
from gpubed.core.errors import UsageError
from support import stand_in_job
from support.samples import granted_cluster

pytestmark = pytest.mark.process

PLAIN = """schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [1, 2], batch: [16, 32]}
settings: {epochs: 2}
repeat: 3
"""


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two clusters, of which one has been measured and reported."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    stand_in_job.install(monkeypatch.setattr)
    granted_cluster(tmp_path)
    granted_cluster(tmp_path, "other")
    (tmp_path / "behaviour.json").write_text(json.dumps({"spread": 0.1}))
    (tmp_path / "mine.yml").write_text(PLAIN)
    assert call("bench", "lab", str(tmp_path / "mine.yml")).return_value == 0
    assert call("report", "lab", "--here").return_value == 0
    return tmp_path


@pytest.fixture
def report(root):
    return root / ".gpubed/lab/campaigns/mine/report/report.json"


def test_a_report_is_all_that_is_needed_to_repeat_it(root, report):
    (root / "mine.yml").unlink()
    done = call("bench", "other", "--repeat", str(report), "--json")
    told = json.loads(done.stdout)
    assert len(told["points"]) == 12
    assert {point["status"] for point in told["points"]} == {"ok"}
    rows = {row["id"]: row for row in told["comparisons"]}
    assert set(rows) == {f"nodes-{n}.batch-{b}" for n in (1, 2) for b in (16, 32)}
    for row in rows.values():
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["ratio"] == pytest.approx(1, abs=0.2)
    assert (root / ".gpubed/other/campaigns/mine-repeat/campaign.json").exists()


@pytest.mark.parametrize("text", ["{", '{"schema": "gpubed/report/2"}'])
def test_what_is_no_report_is_refused(root, report, text):
    report.write_text(text)
    with pytest.raises(UsageError.__mro__[1], match="cannot be read") as refused:
        call("bench", "other", "--repeat", str(report))
    assert refused.value.exit_code == 2


def edited(report, change):
    """Change a report by hand."""
    told = json.loads(report.read_text())
    change(told)
    report.write_text(json.dumps(told))


def test_what_is_not_alike_is_named_before_the_table(root, report):
    def change(told):
        told["campaign"]["gpubed"] = told["campaign"]["made_with"]["gpubed"] = "0.0.1"
        told["campaign"]["recipe"] = "other"
        told["campaign"]["made_with"]["the job's files"] = "0123456789abcdef" * 4
        told["campaign"]["nodes"][1] |= {"hardware": "64 CPUs, 256 GiB", "slots": 8}

    edited(report, change)
    done = call("bench", "other", "--repeat", str(report))
    told = done.stdout
    for said in (
        "  cluster: lab (6f0c0000) → other (6f0c0000)",
        "  gpubed: 0.0.1 → ",
        "  recipe: other → ",
        "  the job's files: 01234567 → ",
        "  nodes: node-0",
        "64 CPUs, 256 GiB",
    ):
        assert said in told
        assert told.index(said) < told.index("verdict")
    assert told.count("gpubed: 0.0.1") == 1
    again = json.loads(call("bench", "other", "--repeat", str(report), "--json").stdout)
    assert {one["what"] for one in again["differences"]} >= {"cluster", "gpubed", "nodes"}
    assert "p and verdict are corrected for all 4 of them (Holm)" in told


def test_real_figures_are_not_compared_with_simulated_ones(root, report):
    edited(report, lambda told: told.update(simulated=True))
    with pytest.raises(UsageError, match="has figures of simulated GPUs, and other simulates none"):
        call("bench", "other", "--repeat", str(report))
    assert not (root / ".gpubed/other/campaigns").exists()


@pytest.mark.parametrize(
    "change",
    [{"sd": -1.0}, {"mean": 1e250}],
)
def test_figures_that_nobody_has_measured_are_refused_before_anything_starts(root, report, change):
    edited(report, lambda told: told["groups"][0]["metrics"]["images_per_s"].update(change))
    with pytest.raises(repeat.Unusable, match="cannot be read"):
        call("bench", "other", "--repeat", str(report))
    assert not (root / ".gpubed/other/campaigns").exists()
