"""How long `gpubed bench` says that a campaign takes: by what is most like what is left."""

import pytest

from gpubed.campaigns import estimate, file, matrix
from gpubed.campaigns.drive import Series
from gpubed.campaigns.estimate import Took
from gpubed.campaigns.records import Record
from gpubed.jobs import jobfile
from support.bench_verb import PLAIN, bench

__all__ = ["bench"]


@pytest.fixture
def series(bench):
    """A campaign of which nothing has ended; batches and nodes differ in how much they count."""
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


def test_what_has_not_run_takes_as_long_as_what_is_most_like_it(series):
    end(series, 1, 16, 10)
    end(series, 1, 24, 10)
    end(series, 3, 24, 100)
    found = series.progress()
    # One of each of these three, and two on three nodes with the small batch.
    assert (found.left, found.seconds, found.guessed) == (5, 10 + 10 + 100 + 2 * 100, 2)


def test_once_every_point_has_run_nothing_is_guessed(series):
    for nodes, batch in ((1, 16), (1, 24), (3, 16), (3, 24)):
        end(series, nodes, batch, 10 * nodes)
    found = series.progress()
    assert (found.left, found.seconds, found.guessed) == (4, 80, 0)


def test_what_failed_says_nothing_of_how_long_the_others_take(series):
    end(series, 1, 16, 1, status="failed")
    assert series.progress().seconds is None
    end(series, 3, 24, 100)
    found = series.progress()
    assert (found.left, found.seconds, found.guessed) == (6, 6 * 100, 5)


def test_earlier_runs_count_for_as_long_as_none_of_its_own_has_ended_well(series):
    series.earlier = [Took({"nodes": 1.0, "epochs": 2.0}, 7), Took({"nodes": 3.0}, 9)]
    found = series.progress()
    assert (found.seconds, found.guessed) == (8 * 7, 8)
    end(series, 1, 16, 30)
    assert series.progress().seconds == 7 * 30


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"model": "a", "nodes": 4.0}, 8),  # eight nodes are nearer to four than one is
        ({"model": "b", "nodes": 5.0}, 100),
        ({"model": "c", "nodes": 3.0}, 100),  # each is of another model, so nodes count
        ({"model": "a", "nodes": 1.0}, 1),
        ({"model": "a", "nodes": 1.0, "precision": "fp16"}, 1),
    ],
)
def test_settings_are_as_near_as_all_of_them_together(settings, seconds):
    known = [
        Took({"model": "a", "nodes": 1.0}, 1),
        Took({"model": "a", "nodes": 8.0}, 8),
        Took({"model": "b", "nodes": 4.0}, 100),
    ]
    assert estimate.seconds(settings, known) == seconds


def test_several_that_are_as_near_count_alike():
    known = [Took({"nodes": 2.0}, 10), Took({"nodes": 8.0}, 20), Took({"nodes": 16.0}, 90)]
    assert estimate.seconds({"nodes": 4.0}, known) == 15


@pytest.mark.process
def test_what_is_a_guess_is_said_to_be_one(bench):
    bench.file.write_text(PLAIN.replace("16, 32", "16").replace("repeat: 2", "repeat: 1"))
    said = " ".join(bench().stderr.split())
    assert "2 are left, time left unknown until one has ended well" in said
    assert "s left, 1 of 1 runs guessed from those most like them)" in said
    assert "(0 s left)" in said
