"""gpubed bench holds links to the rate of a point, measures them, and puts them back."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import drive
from gpubed.core import record
from gpubed.core.errors import GpubedError
from gpubed.nodes import link_rates
from support.bench_verb import PLAIN, bench
from support.known import mark

pytestmark = pytest.mark.process

__all__ = ["bench"]


def stand_in(monkeypatch, shape):
    """Let `shape` stand in for a node's `gpubed-link`; it gets the node's name and the rate."""

    class Session:
        def __init__(self, node, _paths):
            self.name = node.name

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, _command, _script, bps):
            shape(self.name, int(bps))

    monkeypatch.setattr(link_rates, "SSH", Session)


def carried(monkeypatch, bps):
    """Let links carry so much, whatever they are held to, judged as `verify` does."""
    row = {"src": "node-0", "dst": "node-1", "measured_bps": bps}
    stand_in(monkeypatch, lambda *_: None)
    monkeypatch.setattr(drive, "measure_links", lambda _: [row])


def test_a_point_whose_links_carry_another_rate_fails_before_its_run(bench, monkeypatch):
    carried(monkeypatch, 50.4e6)
    bench.file.write_text(PLAIN.replace("batch: [16, 32]", "rate: [50M, 200M]"))
    assert bench().return_value == 1
    assert {call["rate_bps"] for call in bench.calls} == {50_000_000}
    failed = [point for point in bench.points() if point["status"] == "failed"]
    assert {point["settings"]["rate"] for point in failed} == {"200M"}
    (reason,) = {point["reason"] for point in failed}
    assert reason == (
        "link node-0>node-1 carries 50.4 Mbit/s before the run, which must be "
        "≥ 190 Mbit/s and ≤ 210 Mbit/s"
    )
    assert {point["links"][0]["measured_bps"] for point in failed} == {50.4e6}


def test_links_are_put_back_after_an_interruption(bench, monkeypatch):
    told = {}
    stand_in(monkeypatch, told.__setitem__)
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    bench.behave(interrupted="16")
    assert bench().return_value == 130
    assert set(told.values()) == {200_000_000}
    assert not record.read(bench.paths).reshaped


def test_no_run_is_measured_on_links_that_a_bench_has_changed(bench):
    mark(bench.paths, reshaped=True)
    with pytest.raises(GpubedError, match="another rate than declared") as refused:
        CliRunner().invoke(
            cli.build("run"),
            ["run", "lab", "digits"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert "gpubed up lab" in refused.value.hint


def test_a_link_that_cannot_be_put_back_is_told_also_after_an_interruption(bench, monkeypatch):
    def shape(name, bps):
        if bps == 200_000_000:
            raise GpubedError(f"{name} does not answer")

    stand_in(monkeypatch, shape)
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    bench.behave(interrupted="16")
    done = bench()
    assert done.return_value == 130
    assert "has not got its declared rate back: node-1: node-1 does not answer" in done.stderr
    assert "gpubed up lab" in done.stderr
    assert record.read(bench.paths).reshaped
