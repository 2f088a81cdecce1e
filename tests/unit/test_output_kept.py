"""What a run prints is kept up to a bound: its beginning and its end, and words between them."""

import pytest

from gpubed.core import runlock
from gpubed.jobs.runs import active, output
from support.run_verb import call, cluster

__all__ = ["call", "cluster"]

LINES = [f"line {number:>94}" for number in range(200)]  # of 100 bytes


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Bounds of a few lines."""
    monkeypatch.setattr(output, "FIRST", 1000)
    monkeypatch.setattr(output, "PIECE", 500)


@pytest.fixture
def run(cluster):
    """A function that has a run print lines."""
    folder = cluster.runs / "1-digits"
    folder.mkdir(parents=True)
    with (folder / "output.log").open("w+b") as file:
        kept = output.Output(file)
        yield lambda lines: [kept.add(line) for line in lines]


def test_it_holds_nothing_that_a_terminal_obeys(run, cluster):
    """People print it by other means than gpubed's, too."""
    run(["\x1b]0;title\x07\x1b[2Jloss \u061c\x1b[31m0.5\x1b[0m"])
    assert (cluster.runs / "1-digits/output.log").read_bytes() == b"loss 0.5\n"


def test_of_what_is_long_the_beginning_and_the_end_stay_with_words_between_them(run, cluster):
    run(LINES)
    size = (cluster.runs / "1-digits/output.log").stat().st_size
    assert 1500 < size <= 2000
    told = [*active.output(cluster, "1-digits")]
    assert told[:10] == LINES[:10]
    assert told[-4:] == LINES[-4:]
    [words] = [line for line in told if line.startswith("gpubed: ")]
    left_out = int(words.split()[1])
    # The words stand in the place of as many bytes.
    assert size - len(words) - 2 + left_out == 100 * len(LINES)


def test_who_follows_it_misses_nothing_where_a_part_is_left_out_meanwhile(
    run, cluster, monkeypatch
):
    monkeypatch.setattr(active, "_LOOK_EVERY_S", 0.01)
    run(LINES[:19])
    more = iter(LINES[19:])

    def holder(_folder):
        """Asked before each look: the run prints another line, and ends with the last."""
        line = next(more, None)
        run([line] if line else [])
        return line

    monkeypatch.setattr(runlock, "holder", holder)
    assert [*active.output(cluster, "1-digits", follow=True)] == LINES


@pytest.mark.process
def test_a_run_keeps_its_output_so(call, cluster, monkeypatch):
    monkeypatch.setattr(output, "FIRST", 10)
    monkeypatch.setattr(output, "PIECE", 1)
    call("run", "lab", "digits")
    [log] = cluster.runs.glob("*/output.log")
    assert "bytes are left out here" in log.read_text()
