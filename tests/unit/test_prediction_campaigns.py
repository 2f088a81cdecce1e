"""Predictions of a campaign's points: before it runs, in its report, and over all campaigns."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import matrix, predictions
from gpubed.campaigns.predictions import Foretold
from gpubed.jobs.runs import record
from gpubed.nodes.ssh import SSH
from support import measurements
from support.bench_verb import bench
from support.samples import granted_cluster, sample_origin

pytestmark = pytest.mark.process
__all__ = ["bench"]
CAMPAIGN = """schema: gpubed/campaign-file/1
job: imagenet
factors: {nodes: [1, 2], batch_size: [32, 64], model: [resnet18]}
settings: {image_size: 32, steps: 12, warmup_steps: 4}
"""


def ran(paths, rate=40.0, batch=32, hour=10, ranks=1, **values):
    """Write a run of job imagenet that has ended well."""
    started = datetime(2026, 11, 23, hour, tzinfo=UTC)
    own = {"model": "resnet18", "batch_size": batch, "precision": "fp32", "image_size": 32}
    run = record.Record(
        run_id=f"{started:%Y-%m-%dT%H%M%SZ}-imagenet",
        request=record.Request(job="imagenet"),
        origin=sample_origin(),
        command=(),
        values={**own, "channels_last": False, **values},
        world_size=ranks,
        started=started,
        state="ok",
        seconds=12 * batch / rate + 20,
        metrics={"images_per_s": rate, "step_s": batch / rate, "steps": 12, "device": "cpu"},
    )
    (paths.runs / run.run_id).mkdir(parents=True)
    record.write(paths.runs / run.run_id, run)


def test_a_plan_predicts_each_point_and_how_long_all_take(bench):
    bench.file.write_text(CAMPAIGN)
    ran(bench.paths)
    ran(bench.paths, batch=64, hour=11)
    told = json.loads(bench("--plan", "--json").stdout)
    found = {one["id"]: one["prediction"] for one in told["points"]}
    alone = found["nodes-1.batch_size-32.model-resnet18"]
    assert alone["images_per_s"] == pytest.approx(40)
    assert alone["low"] <= 40 <= alone["high"]
    assert alone["seconds"] == pytest.approx(12 * 32 / 40 + 20)
    both = found["nodes-2.batch_size-64.model-resnet18"]
    assert 40 < both["images_per_s"] < 80
    assert told["seconds_left"] == pytest.approx(sum(one["seconds"] for one in found.values()))
    assert (told["predicted"], told["guessed"]) == (4, 0)
    said = bench("--plan")
    assert "4 of 4 runs predicted" in said.stderr
    assert "predicted (90 %)" in said.stdout
    assert not bench.folder.exists()


def test_points_without_a_known_rate_are_not_predicted(bench):
    bench.file.write_text(CAMPAIGN)
    ran(bench.paths)
    found = {
        o["id"]: o["prediction"] for o in json.loads(bench("--plan", "--json").stdout)["points"]
    }
    assert found["nodes-2.batch_size-32.model-resnet18"]
    assert found["nodes-2.batch_size-64.model-resnet18"] is None


@pytest.mark.parametrize(
    "settings", ["framework: fsdp", "overlap: false"], ids=["sharded", "no overlap"]
)
def test_trainings_that_the_formula_does_not_describe_are_not_predicted(bench, settings):
    bench.file.write_text(CAMPAIGN.replace("steps: 12", f"steps: 12, {settings}"))
    ran(bench.paths)
    told = json.loads(bench("--plan", "--json").stdout)["points"]
    assert [one["prediction"] for one in told] == [None] * 4


def test_predictions_are_written_with_time_and_checksum_before_the_first_point(bench):
    bench.file.write_text(CAMPAIGN)
    ran(bench.paths)
    before = datetime.now(UTC)
    assert bench().return_value == 0
    written = json.loads((bench.folder / "prediction.json").read_text())
    points = json.dumps(written["points"], sort_keys=True)
    assert written["sha256"] == hashlib.sha256(points.encode()).hexdigest()
    first = min(datetime.fromisoformat(point["started"]) for point in bench.points())
    assert before <= datetime.fromisoformat(written["written"]) <= first + timedelta(seconds=1)
    ran(bench.paths, rate=80.0, hour=12)
    bench()
    assert json.loads((bench.folder / "prediction.json").read_text()) == written, "never anew"


def test_edited_predictions_are_refused(bench):
    bench.file.write_text(CAMPAIGN)
    ran(bench.paths)
    bench()
    path = bench.folder / "prediction.json"
    path.write_text(path.read_text().replace('"low": ', '"low": 1'))
    result = CliRunner().invoke(cli.build(), ["bench", "lab", str(bench.file), "--plan"])
    assert "it was changed since" in str(result.exception)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A cluster that is up, and does not answer."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(SSH, "answers", lambda *_: False)
    return granted_cluster(tmp_path)


def foretold(folder, campaign, off=1.0):
    """Write predictions of a campaign, `off` times what the model of its points gives."""
    points = {}
    factors = campaign["factors"]
    for settings in matrix.combinations(factors, []):
        size, batch, rate = (settings[name] for name in factors)
        images = off * size * batch * measurements.efficiency(size, batch, rate)
        images /= measurements.COMPUTE_S[batch] + measurements.DATA_S
        points[matrix.identity(settings)] = Foretold(
            images_per_s=images, low=0.9 * images, high=1.1 * images, step_s=size * batch / images
        )
    predictions.write(folder, points, datetime.now(UTC))


def report():
    words = ["report", "lab", "--here", "--json"]
    return json.loads(CliRunner().invoke(cli.build(), words, standalone_mode=False).stdout)


def test_a_report_has_the_predicted_band_and_how_far_it_was_off(paths):
    campaign = measurements.document()
    folder = measurements.write(paths, campaign)
    foretold(folder, campaign, off=1.05)
    told = report()
    assert len(told["predictions"]) == 12
    assert all(one["inside"] for one in told["predictions"])
    for one in told["predictions"]:
        assert one["difference"] == pytest.approx(0.05, abs=0.03)
    [said] = [line for line in told["findings"] if line.startswith("Predictions differ")]
    assert "interval has 100% of 12 points" in said
    page = (folder / "report" / "report.html").read_text()
    assert "shaded: predicted before it ran" in page
    drawn = (folder / "report" / "figures" / "throughput.svg").read_text()
    assert drawn.count('aria-roledescription="area mark"') == 4, "a band for each series"


def test_a_report_without_predictions_has_none(paths):
    folder = measurements.write(paths)
    told = report()
    assert told["predictions"] == []
    assert "shaded" not in (folder / "report" / "report.html").read_text()


def test_a_report_names_predictions_that_were_changed_and_goes_without(paths):
    campaign = measurements.document()
    folder = measurements.write(paths, campaign)
    foretold(folder, campaign)
    path = folder / "prediction.json"
    path.write_text(path.read_text().replace('"high": ', '"high": 1'))
    told = report()
    assert told["predictions"] == []
    assert [one["file"] for one in told["broken"]] == ["prediction.json"]
