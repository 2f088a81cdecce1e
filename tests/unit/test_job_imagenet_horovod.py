"""Horovod's options in job imagenet, and what its autotune has found."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.jobs import jobfile
from support.imagenet import job

__all__ = ["job"]


# Horovod's options


def environment(averaging, **options):
    rank = object.__new__(averaging.Horovod)
    rank.options = averaging.Options(**options)
    return rank._environment()


def test_options_of_horovod_are_in_its_environment_before_it_starts(job):
    averaging = job("averaging")
    given = {"fusion_mb": 32.0, "cycle_ms": 2.5, "hierarchical": True, "autotune": True}
    assert environment(averaging, **given, folder=Path("/run")) == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "2.5",
        **averaging.AUTOTUNE,
        "HOROVOD_TORUS_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE_LOG": "/run/autotune.csv",
    }
    assert environment(averaging) == {}
    assert environment(averaging, fusion_mb=0.0) == {"HOROVOD_FUSION_THRESHOLD": "0"}


def to_go(job, averaging, steps, warm_up, start=0):
    """A training of which so many steps are still to go."""
    module = job("training")
    settings = SimpleNamespace(warmup_steps=warm_up)
    training = object.__new__(module.Training)
    training.__dict__ |= {"settings": settings, "averaging": averaging}
    training.schedule = SimpleNamespace(start=start, total=steps)
    return module, training


def test_steps_in_which_settings_are_tried_out_are_not_timed(job):
    """Measured with Horovod 0.28.1 on two ranks: after step 1224 it has found the best."""
    averaging = job("averaging")
    averaging.Horovod._environment = lambda self: {}
    hvd = sys.modules["horovod"].torch
    hvd.size.return_value = 2
    searching = averaging.Horovod(averaging.Options(autotune=True))
    module, by_default = to_go(job, searching, 100, 10)
    with pytest.raises(module.Failed, match=r"--set warmup_steps=1250 --set steps=1350"):
        by_default._untimed_steps()
    _, resumed = to_go(job, searching, 1350, 1250, start=600)
    with pytest.raises(module.Failed, match=r"750 steps with 749 untimed: .* --set steps=1950"):
        resumed._untimed_steps()
    _, enough = to_go(job, searching, 1350, 1250)
    assert enough._untimed_steps() == 1250
    _, without = to_go(job, averaging.Horovod(averaging.Options()), 100, 10)
    assert without._untimed_steps() == 10
    hvd.size.return_value = 1
    _, alone = to_go(job, averaging.Horovod(averaging.Options(autotune=True)), 8, 10)
    assert alone._untimed_steps() == 7


def test_what_a_node_sets_is_tuned_all_the_same(job, monkeypatch):
    """Horovod tunes nothing that its environment has; an argument of the job is meant to stay."""
    averaging = job("averaging")
    sys.modules["horovod"].torch.size.return_value = 2
    kept = {"HOROVOD_FUSION_THRESHOLD": "402653184", "HOROVOD_CYCLE_TIME": "1"}
    monkeypatch.setattr(os, "environ", dict(kept))
    averaging.Horovod(averaging.Options())
    assert os.environ == kept
    averaging.Horovod(averaging.Options(autotune=True, cycle_ms=2.5))
    assert "HOROVOD_FUSION_THRESHOLD" not in os.environ
    assert os.environ["HOROVOD_CYCLE_TIME"] == "2.5"


# What autotune found. The log is Horovod 0.28.1's own, of this job on two ranks.


@pytest.fixture
def searched(job, tmp_path):
    """What a log tells, and the lines of one of a search that came to its end."""
    autotune, log = job("autotune"), tmp_path / "autotune.csv"
    lines = (Path(__file__).parents[1] / "support/horovod-autotune.csv").read_text().splitlines()

    def found(lines):
        log.write_text("".join(f"{line}\n" for line in lines))
        return autotune.found(log)

    return found, lines


def test_the_best_settings_are_in_the_metrics(searched):
    found, lines = searched
    assert found(lines) == {
        "tuned_fusion_mb": 7.4725,
        "tuned_cycle_ms": 9.96357,
        "tuned_hierarchical_allreduce": False,
        "tuned_cache": True,
        "tuned_rate_bps": pytest.approx(168.327 * 8e6),
        "tuned_tries": 21,
    }


def test_a_search_that_did_not_end_has_found_nothing(searched, job, tmp_path):
    """Its last line is of a setting that was tried, not of the best one."""
    found, lines = searched
    nothing = job("autotune").NOTHING
    assert set(nothing.values()) == {None}
    for cut in range(len(lines)):
        assert found(lines[:cut]) == nothing, lines[:cut][-1:]
    assert found([*lines[:-1], lines[1]]) == nothing, "tried twice, and not the best"
    assert found([*lines[:-1], lines[-1][:9]]) == nothing, "cut within a line"
    assert job("autotune").found(tmp_path / "none.csv") == nothing


def test_the_job_describes_what_was_tuned(job):
    assert job("autotune").NOTHING.keys() <= jobfile.load("imagenet").metrics.keys()


def test_what_was_tuned_is_said_with_the_arguments_for_it(searched, job):
    found, lines = searched
    autotune = job("autotune")
    said = autotune.told(found(lines))
    assert said == (
        "autotune tried 21 settings; the best: --set fusion_mb=7.473 --set cycle_ms=9.964"
    )
    given = dict(word.split("=") for word in said.split() if "=" in word)
    assert (
        job("main")
        .make_parser()
        .parse_args(
            [
                word
                for name, value in given.items()
                for word in (f"--{name.replace('_', '-')}", value)
            ]
        )
    )
    assert autotune.told(autotune.NOTHING).startswith("autotune did not come to its end")
