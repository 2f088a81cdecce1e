"""Horovod's options in job imagenet, and what its autotune has found."""

from pathlib import Path

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
