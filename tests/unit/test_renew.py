"""`gpubed renew`: what was granted is told, and the end is prepared while there is time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import GpubedError, Refused, UsageError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.samples import sample_allocation, sample_plan
from support.specs import BACKENDS

SPEC = {
    "version": 1,
    "backend": {"type": "local"},
    "nodes": [{"count": 3}],
    "networks": {"experiment": {"rate": "1 Gbit/s"}},
}

WALL = {
    **SPEC,
    "backend": BACKENDS["virtualwall"],
    "lease": {"duration": "48 h"},
}


class Testbed:
    """Stands for a testbed with an end and a limit; `refuses` says no to every renewal."""

    __test__ = False

    def __init__(self, left, most, refuses=False):
        self.until = datetime.now(UTC) + left
        self.most = datetime.now(UTC) + most
        self.refuses = refuses

    def __getattr__(self, name):
        return getattr(REAL, name)

    def bind(self, *_):
        return self

    def lease(self, *_):
        return Lease(self.until)

    def renew(self, _allocation, until):
        if self.refuses:
            raise Refused("the project has used up its hours")
        self.until = max(self.until, min(until, self.most))
        return Lease(self.until)


REAL = registry.backend("local")
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    made = Project(tmp_path).cluster("lab")
    made.spec.parent.mkdir(parents=True)
    made.spec.write_text(yaml.safe_dump(SPEC))
    made.state.mkdir(parents=True)
    made.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return made


def run(monkeypatch, testbed, *words):
    monkeypatch.setattr(registry, "backend", lambda _: testbed)
    return CliRunner().invoke(cli.build(), ["renew", "lab", *words], standalone_mode=False)


@pytest.mark.parametrize(("most", "code"), [(24 * HOUR, 0), (3 * HOUR, 4)])
def test_a_shortened_renewal_is_not_a_success(cluster, monkeypatch, most, code):
    done = run(monkeypatch, Testbed(HOUR, most), "--for", "12 h", "--json")
    assert done.return_value == code
    granted = json.loads(done.stdout)["lease"]["remaining_s"]
    assert granted == pytest.approx(min(12 * HOUR, most).total_seconds(), abs=60)


def test_a_lease_that_lasts_longer_already_is_told(cluster, monkeypatch):
    testbed = Testbed(12 * HOUR, 24 * HOUR)
    done = run(monkeypatch, testbed, "--for", "6 h", "--json")
    assert (done.return_value, json.loads(done.stdout)["lasts_longer"]) == (0, True)
    assert "lasts longer already" in run(monkeypatch, testbed, "--for", "6 h").stdout


def test_auto_renews_by_the_policy(cluster, monkeypatch):
    testbed = Testbed(HOUR, 100 * HOUR)
    assert run(monkeypatch, testbed, "--auto", "--once").return_value == 0
    left = testbed.until - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(86400, abs=60)


@pytest.mark.parametrize(
    "words",
    [("--once",), ("--auto", "--for", "6 h"), ("--auto", "--until", "2026-12-01")],
)
def test_what_would_have_no_effect_is_refused(cluster, monkeypatch, words):
    done = run(monkeypatch, Testbed(HOUR, HOUR), *words)
    assert isinstance(done.exception, UsageError)


def test_a_lease_that_is_over_ends_the_watch(cluster, monkeypatch):
    assert run(monkeypatch, Testbed(-HOUR, HOUR), "--auto").return_value == 1


@pytest.fixture
def sleeping(monkeypatch):
    """A function from what happens between looks, one after another, to an end of all looks."""

    def sleeping(*happens):
        left = [*happens]

        def sleep(_):
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr("gpubed.cli.commands.renew.time.sleep", sleep)

    return sleeping


@pytest.mark.parametrize(("anew", "said"), [(False, "lab is not up"), (True, "was made anew")])
def test_auto_ends_with_its_cluster(cluster, monkeypatch, sleeping, anew, said):
    """A `down` and another `up` leave nothing that this one was asked to keep."""

    def happens():
        granted = sample_allocation(sample_plan())
        cluster.allocation.unlink()
        if anew:
            other = granted.model_copy(update={"uuid": granted.uuid.replace("6", "7")})
            cluster.allocation.write_text(other.model_dump_json())

    sleeping(happens)
    done = run(monkeypatch, Testbed(12 * HOUR, 100 * HOUR), "--auto")
    assert isinstance(done.exception, GpubedError)
    assert said in done.exception.message


def test_auto_asks_again_where_nothing_is_known_yet(cluster, monkeypatch, sleeping):
    """That is no testbed whose nodes do not expire."""
    testbed, silent = Testbed(HOUR, 100 * HOUR), [True]
    answers = testbed.lease

    def ask(*_):
        if silent:
            raise GpubedError("the authority does not answer")
        return answers()

    monkeypatch.setattr(testbed, "lease", ask)
    sleeping(silent.clear)
    done = run(monkeypatch, testbed, "--auto")
    assert "the authority does not answer" in done.stderr
    assert "granted until" in done.stdout
