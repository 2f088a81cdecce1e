"""Figures as a person writes them, tables where there are several, and progress while one waits."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.core.paths import Project
from gpubed.jobs import execution, jobfile
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.metrics import formatted, summarized
from gpubed.jobs.trials import summarize
from support.samples import sample_allocation, sample_plan


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (0.9805555555555555, "1", "0.9806"),
        (11689512, "1", "11,689,512"),
        (191234567.8, "bit/s", "191 Mbit/s"),
        (999.7e6, "bit/s", "1 Gbit/s"),
        (1.05e9, "B", "1,001 MiB"),
        (3661, "s", "3,661 s"),
        (0, "bit/s", "0 bit/s"),
        (12, "B", "12 B"),
        (0.00042, "s", "420 µs"),
        (0.0123456, "s", "12.3 ms"),
        (1797, "images", "1,797 images"),
        (True, "", "yes"),
        ("link", "", "link"),
        (float("nan"), "1", "nan"),
    ],
)
def test_a_figure_has_few_digits_and_its_unit(value, unit, written):
    assert formatted(value, unit) == written


def test_a_summary_has_the_unit_in_each_of_its_figures():
    summary = summarize([{"rate": 180e6}, {"rate": 200e6}])["rate"]
    assert summarized(summary, "bit/s") == (
        "190 Mbit/s ± 130 Mbit/s (95 %; 180 Mbit/s … 200 Mbit/s, n = 2)"
    )
    assert summarized(summarize([{"v": 10}])["v"], "1") == "10 (n = 1)"
    same = summarize([{"v": 6}] * 3)["v"]
    assert summarized(same, "steps") == "6 steps (the same each time, n = 3)"


LINK = {"src": "node-0", "dst": "node-1", "declared_bps": 2e8, "measured_bps": 191234567.8}


@pytest.fixture
def said(tmp_path, monkeypatch):
    """A function that returns what `gpubed run` says of metrics; nothing runs."""
    paths = Project(tmp_path).cluster("lab")
    for folder in (paths.spec.parent, paths.state):
        folder.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\n")
    allocation = sample_allocation(sample_plan())
    paths.allocation.write_text(allocation.model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(health, "usable", lambda cluster: (cluster, []))

    def run(job, metrics, lines=()):
        result = JobResult(job, "/runs/1", 3, metrics, described=jobfile.load(job).metrics)

        def pretend(*given, **_):
            for line in lines:
                given[2](line)
            return result

        monkeypatch.setattr(execution, "run", pretend)
        return CliRunner().invoke(
            cli.build(), ["run", "lab", job], standalone_mode=False, catch_exceptions=False
        )

    return run


@pytest.mark.process
def test_single_figures_come_line_by_line(said):
    text = said("digits", {"test_accuracy": 0.9805555, "images_per_s": 3552.4}).stdout
    assert "  test_accuracy = 0.9806\n" in text
    assert "  images_per_s = 3,552 images/s\n" in text


@pytest.mark.process
def test_several_come_as_a_table(said):
    text = said("allreduce", {"links": [LINK], "device": "cpu"}).stdout
    assert "  device = cpu\n" in text
    [head] = [line.split() for line in text.splitlines() if line.strip().startswith("src")]
    [row] = [line for line in text.splitlines() if line.strip().startswith("node-0")]
    assert head[:4] == ["src", "dst", "declared", "measured"]
    assert "191 Mbit/s" in row
    assert "200 Mbit/s" in row


def test_the_time_left_follows_from_the_steps_that_were_made():
    clock = iter([100.0, 110.0, 130.0])
    estimate = Estimate(lambda: next(clock))
    assert estimate.read("progress: 0/4 sizes") == "sizes: 0 of 4"
    assert estimate.read("progress: 1/4 sizes") == "sizes: 1 of 4, 30 s left"
    assert estimate.read("progress: 4/4 sizes, done") == "sizes: 4 of 4, done"


@pytest.mark.parametrize("line", ["progress: x", "in progress: 1/2 x", "progress: 1/0 x", ""])
def test_other_lines_are_no_progress(line):
    assert Estimate().read(line) is None
