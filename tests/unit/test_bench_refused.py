"""What gpubed bench refuses: what cannot be measured, and whoever would measure beside it."""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from support import stand_in_job
from support.bench_verb import PLAIN, bench
from support.specs import BACKENDS

__all__ = ["bench"]


@pytest.mark.process
def test_a_campaign_waits_for_no_run_that_is_at_work(bench):
    with runlock.measuring(bench.paths.state, "run", shared=True):
        with pytest.raises(Locked, match="`gpubed run`"):
            bench()
        with runlock.measuring(bench.paths.state, "run", shared=True):
            pass
    assert bench.calls == []
    assert bench().return_value == 0


@pytest.mark.process
def test_a_campaign_is_alone_while_it_measures(bench, monkeypatch):
    refused = []
    real = stand_in_job.run

    def run(*words, **named):
        for shared in (True, False):
            with pytest.raises(Locked), runlock.measuring(bench.paths.state, "x", shared=shared):
                pass
        for verb in (["run", "lab", "digits"], ["verify", "lab"]):
            done = CliRunner().invoke(cli.build(), verb, standalone_mode=False)
            refused.append(done.exception)
        return real(*words, **named)

    monkeypatch.setattr("gpubed.jobs.execution.run", run)
    bench.file.write_text(PLAIN.replace("[1, 2], batch: [16, 32]", "[1]").replace("2\n", "1\n"))
    assert bench().return_value == 0
    assert [type(error) for error in refused] == [Locked, Locked]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("[1, 2]", "[1, 9]"), r"mine\.yml:3"),
        (("16, 32]", "16, x]"), r"mine\.yml:3"),
        (("16, 32]", '32, "032"]'), "a value is there twice"),
        (("batch: [16, 32]", "rate: [1bit/s]"), "at least 1000000"),
        (("repeat: 2", "repeat: 3\nstop: {metric: device, relative_width: 0.1}"), "is no number"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(bench, change, why):
    bench.file.write_text(PLAIN.replace(*change))
    with pytest.raises(GpubedError, match=why):
        bench()
    assert bench.calls == []
    assert not bench.folder.exists()


@pytest.mark.process
def test_a_testbed_that_runs_jobs_has_no_nodes_to_choose_from(bench):
    spec = {"version": 1, "backend": BACKENDS["gpulab"], "recipe": "cuda12"}
    job = {"count": 1, "gpus": 1, "machine": {"cpus": 4, "memory": "16 GB"}}
    bench.paths.spec.write_text(json.dumps({**spec, "nodes": [job]}))
    granted = json.loads(bench.paths.allocation.read_text())
    none = {"nodes": [], "experiment": None, "backend": "gpulab"}
    bench.paths.allocation.write_text(json.dumps({**granted, **none}))
    with pytest.raises(UsageError, match="gpulab lends no nodes to choose from"):
        bench()
    bench.file.write_text(PLAIN.replace("nodes: [1, 2], ", ""))
    assert bench().return_value == 0
    assert len(bench.calls) == 4
