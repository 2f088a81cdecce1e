"""`gpubed renew`: what was granted is told, and the end is prepared while there is time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import before_end, lease
from gpubed.core.errors import GpubedError, Refused, UsageError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.base import Lease
from support.known import last
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

    def __init__(self, left: timedelta, most: timedelta, refuses: bool = False) -> None:
        self.until = datetime.now(UTC) + left
        self.most = datetime.now(UTC) + most
        self.refuses = refuses

    def __getattr__(self, name: str) -> Any:
        return getattr(REAL, name)

    def bind(self, *_: object) -> Testbed:
        return self

    def lease(self, *_: object) -> Lease:
        return Lease(self.until)

    def renew(self, _allocation: object, until: datetime) -> Lease:
        if self.refuses:
            raise Refused("the project has used up its hours")
        self.until = max(self.until, min(until, self.most))
        return Lease(self.until)


REAL = registry.backend("local")
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterPaths:
    made = Project(tmp_path).cluster("lab")
    made.spec.parent.mkdir(parents=True)
    made.spec.write_text(yaml.safe_dump(SPEC))
    made.state.mkdir(parents=True)
    made.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return made


def run(monkeypatch: pytest.MonkeyPatch, testbed: Testbed, *words: str) -> Any:
    monkeypatch.setattr(registry, "backend", lambda _: testbed)
    return CliRunner().invoke(cli.build(), ["renew", "lab", *words], standalone_mode=False)


def test_a_hint_names_the_cluster_at_hand(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(monkeypatch, Testbed(HOUR, HOUR), "--for", "9999999 d")
    assert "CLUSTER --for" in done.exception.hint  # the terminal's words have its name


@pytest.mark.parametrize(("most", "code"), [(24 * HOUR, 0), (3 * HOUR, 4)])
def test_a_shortened_renewal_is_not_a_success(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, most: timedelta, code: int
) -> None:
    done = run(monkeypatch, Testbed(HOUR, most), "--for", "12 h", "--json")
    assert done.return_value == code
    granted = json.loads(done.stdout)["lease"]["remaining_s"]
    assert granted == pytest.approx(min(12 * HOUR, most).total_seconds(), abs=60)


def test_a_lease_that_lasts_longer_already_is_told(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = Testbed(12 * HOUR, 24 * HOUR)
    done = run(monkeypatch, testbed, "--for", "6 h", "--json")
    assert (done.return_value, json.loads(done.stdout)["lasts_longer"]) == (0, True)
    assert "lasts longer already" in run(monkeypatch, testbed, "--for", "6 h").stdout


def test_auto_renews_by_the_policy(cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Testbed(HOUR, 100 * HOUR)
    assert run(monkeypatch, testbed, "--auto", "--once").return_value == 0
    left = testbed.until - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(86400, abs=60)


@pytest.mark.parametrize(
    "words",
    [("--once",), ("--auto", "--for", "6 h"), ("--auto", "--until", "2026-12-01")],
)
def test_what_would_have_no_effect_is_refused(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    done = run(monkeypatch, Testbed(HOUR, HOUR), *words)
    assert isinstance(done.exception, UsageError)


def test_the_watch_says_until_when(cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody sees whether it does anything, for as long as the lease lasts."""
    testbed = Testbed(12 * HOUR, 100 * HOUR)
    done = run(monkeypatch, testbed, "--auto", "--once")
    assert f"granted until {lease.local(testbed.until)}" in done.stderr


@pytest.mark.parametrize("refuses", [False, True])
def test_an_end_that_cannot_be_moved_is_prepared_once(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(before_end, "prepare", lambda *_: prepared.append("once") or ["done"])
    testbed = Testbed(HOUR / 4, HOUR / 4, refuses)
    for _ in range(2):
        run(monkeypatch, testbed, "--auto", "--once")
    assert prepared == ["once"]
    assert lease.last(cluster).ended_for == testbed.until


def test_a_lease_that_is_over_ends_the_watch(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, Testbed(-HOUR, HOUR), "--auto").return_value == 1


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function from what happens between looks, one after another, to an end of all looks."""

    def sleeping(*happens: Callable[[], object]) -> None:
        left = [*happens]

        def sleep(_: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr("gpubed.cli.commands.renew.time.sleep", sleep)

    return sleeping


def test_auto_tells_the_nodes_of_now(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, sleeping: Callable[..., None]
) -> None:
    """A node that `up` has replaced would end what runs on it at the end that it knows."""
    told: list[list[str]] = []

    def tell(now: Cluster, **_: object) -> None:
        told.append([node.id for node in now.allocation.nodes])

    def replaced() -> None:
        granted = sample_allocation(sample_plan())
        nodes = (granted.nodes[0], granted.nodes[1].model_copy(update={"id": "another"}))
        changed = granted.model_copy(update={"nodes": (*nodes, *granted.nodes[2:])})
        cluster.allocation.write_text(changed.model_dump_json())

    monkeypatch.setattr(lease, "tell_nodes", tell)
    sleeping(replaced, lambda: None)
    run(monkeypatch, Testbed(12 * HOUR, 100 * HOUR), "--auto")
    assert [ids[1] == "another" for ids in told] == [False, True, True]


def test_auto_goes_by_the_policy_of_now(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, sleeping: Callable[..., None]
) -> None:
    testbed = Testbed(12 * HOUR, 100 * HOUR)
    edited = {**SPEC, "lease": {"duration": "48 h", "renewal": {"margin": "13 h"}}}
    sleeping(
        lambda: cluster.spec.write_text("nodes: ["),  # somebody is writing it
        lambda: cluster.spec.write_text(yaml.safe_dump(edited)),
    )
    run(monkeypatch, testbed, "--auto")
    left = testbed.until - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(48 * 3600, abs=60)


@pytest.mark.parametrize(("anew", "said"), [(False, "lab is not up"), (True, "was made anew")])
def test_auto_ends_with_its_cluster(
    cluster: ClusterPaths,
    monkeypatch: pytest.MonkeyPatch,
    sleeping: Callable[..., None],
    anew: bool,
    said: str,
) -> None:
    """A `down` and another `up` leave nothing that this one was asked to keep."""

    def happens() -> None:
        granted = sample_allocation(sample_plan())
        cluster.allocation.unlink()
        if anew:
            other = granted.model_copy(update={"uuid": granted.uuid.replace("6", "7")})
            cluster.allocation.write_text(other.model_dump_json())

    sleeping(happens)
    done = run(monkeypatch, Testbed(12 * HOUR, 100 * HOUR), "--auto")
    assert isinstance(done.exception, GpubedError)
    assert said in done.exception.message


@pytest.mark.parametrize("words", [("--auto", "--once"), ()])
def test_nodes_of_a_testbed_that_cluster_yml_no_longer_names_are_renewed(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Until the next `up` they are the cluster: it was said that they do not expire."""
    granted = sample_allocation(sample_plan()).model_copy(update={"backend": "virtualwall"})
    cluster.allocation.write_text(granted.model_dump_json())
    copy = last(cluster, "virtualwall")
    copy.parent.mkdir(parents=True)
    copy.write_text(yaml.safe_dump(WALL))
    testbed = Testbed(HOUR, 100 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda name: {"virtualwall": testbed}[name])
    done = CliRunner().invoke(cli.build(), ["renew", "lab", *words], standalone_mode=False)
    assert done.return_value == 0
    left = testbed.until - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(48 * 3600, abs=60)


def test_auto_asks_again_where_nothing_is_known_yet(
    cluster: ClusterPaths, monkeypatch: pytest.MonkeyPatch, sleeping: Callable[..., None]
) -> None:
    """That is no testbed whose nodes do not expire."""
    testbed, silent = Testbed(HOUR, 100 * HOUR), [True]
    answers = testbed.lease

    def ask(*_: object) -> Lease:
        if silent:
            raise GpubedError("the authority does not answer")
        return answers()

    monkeypatch.setattr(testbed, "lease", ask)
    sleeping(silent.clear)
    done = run(monkeypatch, testbed, "--auto")
    assert "the authority does not answer" in done.stderr
    assert "granted until" in done.stdout
