"""`gpubed renew`: what was granted is told, and the end is prepared while there is time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.samples import sample_allocation, sample_plan

SPEC = {
    "version": 1,
    "backend": {"type": "local"},
    "nodes": [{"count": 3}],
    "networks": {"experiment": {"rate": "1 Gbit/s"}},
}


class Testbed:
    """Stands for a testbed with an end and a limit."""

    __test__ = False

    def __init__(self, left, most):
        self.until = datetime.now(UTC) + left
        self.most = datetime.now(UTC) + most

    def __getattr__(self, name):
        return getattr(REAL, name)

    def bind(self, *_):
        return self

    def lease(self, *_):
        return Lease(self.until)

    def renew(self, _allocation, until):
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
    "words", [("--once",), ("--auto", "--for", "6 h"), ("--auto", "--until", "2026-12-01")]
)
def test_what_would_have_no_effect_is_refused(cluster, monkeypatch, words):
    done = run(monkeypatch, Testbed(HOUR, HOUR), *words)
    assert isinstance(done.exception, UsageError)
