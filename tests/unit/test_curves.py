"""Figures that a program writes step by step, without a metrics.json."""

import base64
import json

import pytest

from gpubed.jobs import curves, job_result
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.jobfile import Job

LINES = '{"step": 10, "loss": 2.5, "lr": 0.1}\n{"step": 20, "loss": 0.5}\n{"step": 30, "lo'
TABLE = "epoch,loss,note,acc\n1,2.5,a,\n2,0.5,b,0.9\n"


# As TensorBoard 2.21's EventFileWriter writes them: its version, then two scalars.
EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCXldHkjwwtpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2"
    "ZW50X2ZpbGVfd3JpdGVyYkmVbiAAAAAAAAAAKe2pUAkAAAAAAADwPxAKKhMKEQoKTG9zcy90cmFpbhUAACBAQNAq+iAA"
    "AAAAAAAAKe2pUAkAAAAAAADwPxAUKhMKEQoKTG9zcy90cmFpbhUAAAA/eJmPgQ=="
)


@pytest.fixture
def run(tmp_path):
    """A function that judges a run whose folder has these files."""

    def judged(**contents):
        for name, text in contents.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        result = JobResult("mine", str(tmp_path), 2)
        job_result.judge(result, Job(command=("python", "x.py")), {})
        return result

    return judged


def test_a_line_per_step_is_a_curve(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(LINES)
    assert curves.read(tmp_path) == {"loss": [(10, 2.5), (20, 0.5)], "lr": [(10, 0.1)]}


def test_a_table_is_curves_too(tmp_path):
    (tmp_path / "metrics.csv").write_text(TABLE)
    assert curves.read(tmp_path) == {"loss": [(1, 2.5), (2, 0.5)], "acc": [(2, 0.9)]}


def test_rows_without_a_step_are_counted(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n')
    assert curves.read(tmp_path) == {"loss": [(0, 1), (1, 2)]}


def test_event_files_of_tensorboard_are_curves(tmp_path):
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.node-0.7.0").write_bytes(EVENTS)
    assert curves.read(tmp_path / "val") == {"Loss/train": [(10, 2.5), (20, 0.5)]}
    assert [*curves.read(tmp_path)] == ["train/Loss/train", "val/Loss/train"]


@pytest.mark.parametrize(
    "text",
    ["", "[1]\n3\nnull\n", '{"loss": "x", "on": true, "many": [1]}\n', "[" * 100_000, "\udcff"],
)
def test_what_is_no_figure_is_left_out(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    assert curves.read(tmp_path) == {}


def test_a_loss_that_is_no_number_at_the_end_fails_the_run(run):
    result = run(metrics_jsonl='{"loss": 1.5}\n{"loss": NaN}\n')
    assert (result.status, result.failures) == ("failed", ["loss is nan instead of a number"])
    json.dumps(result.document(), allow_nan=False)


def test_a_metric_never_replaces_a_key_of_gpubed(run):
    told = run(metrics_json='{"status": "best", "run_id": 7, "loss": 0.1}').document()
    assert (told["status"], told["loss"], told["metrics"]["status"]) == ("ok", 0.1, "best")
    assert told["run_id"] != 7
