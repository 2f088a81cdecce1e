"""How long `gpubed bench` says that a campaign takes."""

import pytest

from gpubed.campaigns import file, matrix
from gpubed.campaigns.drive import Series
from gpubed.campaigns.records import Record
from gpubed.jobs import jobfile
from support.bench_verb import PLAIN, bench

__all__ = ["bench"]


@pytest.fixture
def series(bench):
    """A campaign of which nothing has ended; two numbers of nodes, two batches."""
    bench.file.write_text(PLAIN.replace("[1, 2]", "[1, 3]").replace("16, 32", "16, 24"))
    source = file.load(str(bench.file), bench.paths.project)
    return Series(source.campaign, matrix.expand(source, jobfile.load("digits")))


def end(series, nodes, batch, seconds, status="ok"):
    """Let the first repetition of a point end."""
    settings = {"nodes": nodes, "batch": batch}
    point = next(point for point in series.points if point.settings == settings)
    record = Record(
        id=point.id,
        repetition=0,
        status=status,
        settings=settings,
        run_id="",
        run_dir="",
        started="",
        seconds=seconds,
        metrics={},
    )
    series.ended[record.key] = record


def test_a_point_takes_as_long_as_before_and_a_new_one_as_the_others_on_average(series):
    series.earlier = [7, 9]
    found = series.progress()
    assert (found.left, found.seconds, found.guessed) == (8, 8 * 8, 8)
    end(series, 1, 16, 10)
    end(series, 3, 24, 100)
    found = series.progress()
    assert (found.left, found.seconds, found.guessed) == (6, 10 + 100 + 4 * 55, 4)
