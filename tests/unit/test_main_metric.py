"""Which metric stands for a point: the same one for `gpubed bench` and `gpubed report`."""

import pytest

from gpubed.jobs import jobfile
from gpubed.jobs.metrics import main_metric

ALL = ["loss", "bytes_per_s", "busbw_bps", "images_per_s", "step_s"]


@pytest.mark.parametrize(
    ("stop", "names", "chosen"),
    [
        ("step_s", ALL, "step_s"),
        ("device", ALL, "images_per_s"),
        (None, ALL, "images_per_s"),
        (None, ["loss", "busbw_bps", "bytes_per_s", "files_per_s"], "bytes_per_s"),
        (None, ["images_per_s_per_rank", "floor", "busbw_bps", "floor_bps"], "busbw_bps"),
        (None, ["test_accuracy", "loss"], "test_accuracy"),
        (None, [], ""),
    ],
)
def test_what_a_job_gets_done_per_second_comes_first(stop, names, chosen):
    assert main_metric(stop, names) == chosen


@pytest.mark.parametrize(
    ("job", "chosen"),
    [
        ("allreduce", "busbw_bps"),
        ("digits", "images_per_s"),
        ("imagenet", "images_per_s"),
        ("prepare", "images_per_s"),
        ("stage", "bytes_per_s"),
    ],
)
def test_the_jobs_have_one(job, chosen):
    numbers = jobfile.load(job).numbers
    assert main_metric(None, numbers) == chosen
    assert not {"links", "ranks", "device", "simulated"} & set(numbers)
