"""Predictions of a campaign's points: before it runs, in its report, and over all campaigns."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import matrix, predictions
from gpubed.campaigns.predictions import Foretold
from gpubed.nodes.ssh import SSH
from support import measurements
from support.bench_verb import bench
from support.imagenet_runs import ran
from support.samples import granted_cluster

pytestmark = pytest.mark.process
__all__ = ["bench"]
CAMPAIGN = """schema: gpubed/campaign-file/1
job: imagenet
factors: {nodes: [1, 2], batch_size: [32, 64], model: [resnet18]}
settings: {image_size: 32, steps: 12, warmup_steps: 4}
"""


def alone(bench, rate, hour=10, **settings):
    """Let one rank have trained before."""
    ran(bench.paths.runs, rate, hour, **{"model": "resnet18", "image_size": 32, **settings})


def test_a_plan_predicts_each_point_and_how_long_all_take(bench):
    bench.file.write_text(CAMPAIGN)
    alone(bench, 40.0)
    alone(bench, 40.0, 11, batch_size=64)
    told = json.loads(bench("--plan", "--json").stdout)
    found = {one["id"]: one["prediction"] for one in told["points"]}
    one = found["nodes-1.batch_size-32.model-resnet18"]
    assert one["images_per_s"] == pytest.approx(40)
    assert one["low"] <= 40 <= one["high"]
    assert one["seconds"] == pytest.approx(12 * 32 / 40 + 20)
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
    alone(bench, 40.0)
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
    alone(bench, 40.0)
    told = json.loads(bench("--plan", "--json").stdout)["points"]
    assert [one["prediction"] for one in told] == [None] * 4


def test_predictions_are_written_with_time_and_checksum_before_the_first_point(bench):
    bench.file.write_text(CAMPAIGN)
    alone(bench, 40.0)
    before = datetime.now(UTC)
    assert bench().return_value == 0
    written = json.loads((bench.folder / "prediction.json").read_text())
    points = json.dumps(written["points"], sort_keys=True)
    assert written["sha256"] == hashlib.sha256(points.encode()).hexdigest()
    first = min(datetime.fromisoformat(point["started"]) for point in bench.points())
    assert before <= datetime.fromisoformat(written["written"]) <= first + timedelta(seconds=1)
    alone(bench, 80.0, 12)
    bench()
    assert json.loads((bench.folder / "prediction.json").read_text()) == written, "never anew"


def test_edited_predictions_are_refused(bench):
    bench.file.write_text(CAMPAIGN)
    alone(bench, 40.0)
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


def test_a_report_refuses_predictions_that_were_changed(paths):
    campaign = measurements.document()
    folder = measurements.write(paths, campaign)
    foretold(folder, campaign)
    path = folder / "prediction.json"
    path.write_text(path.read_text().replace('"high": ', '"high": 1'))
    words = ["report", "lab", "--here"]
    error = CliRunner().invoke(cli.build(), words, standalone_mode=False).exception
    assert "it was changed since: its SHA-256 is another one" in str(error)
    assert f"remove {path}" in error.hint


def test_a_run_of_another_kind_tells_no_rate(bench):
    bench.file.write_text(CAMPAIGN)
    alone(bench, 40.0, 10, image_size=64)
    alone(bench, 40.0, 11, batch_size=64, precision="bf16")
    alone(bench, 40.0, 12, ranks=2)
    told = json.loads(bench("--plan", "--json").stdout)["points"]
    assert [one["prediction"] for one in told] == [None] * 4


def history(*words):
    done = CliRunner().invoke(cli.build(), ["predict", "--history", *words], standalone_mode=False)
    assert done.exception is None
    return done


def test_the_history_has_all_campaigns_of_all_clusters(paths):
    for name, off in (("first", 1.05), ("second", 1.3)):
        campaign = measurements.document(name)
        foretold(measurements.write(paths, campaign), campaign, off)
    measurements.write(paths, measurements.document("unforeseen"))
    told = json.loads(history("--json").stdout)
    assert len(told["rows"]) == 24
    assert {row["campaign"] for row in told["rows"]} == {"lab/first", "lab/second"}
    for row in told["rows"]:
        assert row["inside"] == (row["low"] <= row["measured"] <= row["high"])
        assert row["difference"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert told["coverage"] == 0.5
    assert 0.05 < told["median_difference"] < 0.3
    assert told["without"] == ["lab/unforeseen"]
    said = history()
    assert said.stdout.count("lab/first") == 12
    assert "interval has 50% of 24 points" in said.stdout
    assert "began without predictions: lab/unforeseen" in said.stderr


def test_without_campaigns_the_history_says_so(paths):
    assert "no campaign of this controller was predicted yet" in history().stdout
