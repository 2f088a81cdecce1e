"""`gpubed watch`: when it acts, and above all when it does not.

What looks at the nodes, what repairs them and the clock are STAND-INs.
"""

import json
import os
import shutil
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import before_end, condition, down, lease, up, watch, watch_log, watch_unit
from gpubed.cluster.condition import Condition
from gpubed.cluster.down import Removal
from gpubed.configuration import due
from gpubed.configuration import use as uses
from gpubed.configuration.health import NodeHealth, Quarantine
from gpubed.configuration.systemd import Stopped
from gpubed.configuration.use import Use
from gpubed.core import runlock, secret
from gpubed.core.errors import GpubedError, Locked, PrerequisiteMissing, Refused, UsageError
from gpubed.core.paths import Project
from gpubed.jobs.runs import checkpoints
from gpubed.testbeds import copies, registry
from gpubed.testbeds.base import Lease
from support.samples import granted_cluster

SPEC = "version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\nconfigure: false\n"
NAMES = ("node-0", "node-1", "node-2")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
VOLUME = "replace Volume shared (size): a new one takes its place, the old one stays"
REAL, REAL_UP = registry.backend("local"), up.up


class World:
    """A cluster, a clock and what a watch meets; each `watch` is as of a new process.

    Attributes:
        states: How nodes are that are not ready.
        asks: What a repair asks to approve.
        fails: What a repair raises.
        heals: Whether a repair brings the nodes back.
    """

    def __init__(self, cluster, monkeypatch):
        self.cluster, self.now = cluster, datetime(2030, 1, 1, tzinfo=UTC)
        self.states, self.rest, self.unwell = {}, {}, []
        self.asks, self.fails, self.heals = (), None, True
        self.repairs, self.events = [], []
        monkeypatch.setattr(lease, "now", lambda: self.now)
        monkeypatch.setattr(condition, "look", self.look_at_nodes)
        monkeypatch.setattr(up, "up", self.up)

    def look_at_nodes(self, *_):
        if isinstance(self.states, Exception):
            raise self.states
        nodes = dict.fromkeys(NAMES, "ready") | self.states
        return Condition(nodes, **self.rest, unwell=tuple(self.unwell))

    def up(self, cluster, _engine, *, approve, still_wanted):
        with runlock.hold(cluster.state, "up"):
            still_wanted()
            if self.asks:
                approve(self.asks)
            self.repairs.append(self.now)
            if self.fails:
                raise self.fails
            if self.heals:
                self.states, self.rest = {}, {}

    def watch(self, repairs=5):
        follow = lambda _: nullcontext()  # noqa: E731
        return watch.Watch(self.cluster, "embedded", repairs, self.events.append, follow)

    def looks(self, count, every=MINUTE, of=None):
        """Look so often; return how each ended."""
        of, found = of or self.watch(), []
        for _ in range(count):
            found.append(of.look())
            self.now += every
        return found

    @property
    def kinds(self):
        return [event.event for event in self.events]


@pytest.fixture
def world(tmp_path, monkeypatch):
    cluster = granted_cluster(tmp_path)
    cluster.spec.write_text(SPEC)
    copies.keep(cluster, "local")
    secret.ensure_key(cluster.private_key)
    stack = cluster.project.pulumi / ".pulumi" / "stacks" / "gpubed" / "lab.json"
    stack.parent.mkdir(parents=True)
    stack.touch()
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return World(cluster, monkeypatch)


def test_a_look_that_brings_no_news_is_not_logged(world):
    assert world.looks(3) == ["well"] * 3
    assert world.events == []
    assert not world.cluster.logs.exists()
    assert not world.cluster.watch.exists()


def test_one_look_is_no_reason_to_repair(world):
    world.states = {"node-1": "stopped"}
    one = world.watch()
    assert world.looks(1, of=one) == ["amiss"]
    world.states = {}
    assert world.looks(1, of=one) == ["well"]
    world.states = {"node-1": "stopped"}
    assert world.looks(1, of=one) == ["amiss"]
    assert world.repairs == []
    assert world.kinds == ["amiss", "well", "amiss"]


def test_what_is_amiss_twice_is_repaired_and_the_log_says_why(world):
    world.states = {"node-1": "missing"}
    assert world.looks(3) == ["amiss", "well", "well"]
    assert len(world.repairs) == 1
    log = (world.cluster.logs / "watch.log").read_text().splitlines()
    assert log == [
        "2030-01-01T00:00:00Z amiss: node-1 is missing: looked at again before it is repaired",
        "2030-01-01T00:01:00Z repair: node-1 is missing: repaired in 0 s",
    ]
    assert world.events[-1].nodes == ("node-1",)


@pytest.mark.parametrize(
    "rest",
    [
        {"services": {"jupyterlab": "JupyterLab does not answer"}},
        {"stopped": (Stopped("slurm", "slurmd.service", "node-1", "failed"),)},
    ],
)
def test_services_are_repaired_like_nodes(world, rest):
    world.rest = rest
    assert world.looks(2) == ["amiss", "well"]
    assert len(world.repairs) == 1


def test_a_node_that_boots_is_given_its_time(world):
    """120 s, as the local testbed says."""
    world.states = {"node-1": "unreachable"}
    one = world.watch()
    world.looks(2, of=one)
    assert world.repairs == []
    world.looks(1, of=one)
    assert len(world.repairs) == 1


def test_what_another_process_saw_long_ago_is_no_look_of_this_one(world):
    world.states = {"node-1": "missing"}
    world.looks(1)
    world.now += 24 * HOUR
    second = world.watch()
    second.start(60)
    world.looks(1, of=second)
    assert world.repairs == []


def test_failed_repairs_are_further_and_further_apart(world):
    world.states, world.fails = {"node-1": "missing"}, GpubedError("no room", "make room")
    world.looks(100, of=world.watch(repairs=100))
    apart = [b - a for a, b in zip(world.repairs, world.repairs[1:], strict=False)]
    assert [each // MINUTE for each in apart] == [2, 2, 4, 8, 16, 30, 30]
    assert world.kinds == ["amiss", *["repair"] * 8]
    assert world.events[1].outcome == "failed: no room (make room); not again for 1 min"
    world.fails = None
    world.looks(40, of=world.watch(repairs=100))
    assert world.watch().memory.failures == 0


def test_a_budget_that_is_spent_leaves_only_the_watch(world):
    world.heals = False
    world.states = {"node-1": "missing"}
    world.looks(20, of=world.watch(repairs=2))
    assert len(world.repairs) == 2
    assert world.kinds.count("spent") == 1
    assert "2 repairs in 24 h are spent: it only watches until 2030-01-02T00:01:00Z" in (
        world.events[-1].outcome
    )
    world.now += 24 * HOUR
    world.looks(2, of=world.watch(repairs=2))
    assert len(world.repairs) == 3


def test_a_budget_of_none_only_watches(world):
    world.states = {"node-1": "missing"}
    assert world.looks(3, of=world.watch(repairs=0)) == ["amiss"] * 3
    assert (world.repairs, world.kinds) == ([], ["amiss", "spent"])


@pytest.mark.parametrize(
    ("state", "asks", "goes"),
    [
        ("missing", [VOLUME], False),
        ("missing", ["the volume lab-shared is gone; an empty one is made in its place"], False),
        ("missing", ["replace Node node-2 (image): what is on its own disks is lost"], False),
        ("missing", ["replace Node node-11: what is on its own disks is lost"], False),
        ("missing", ["delete Node node-1: what is on its own disks is lost"], False),
        ("missing", ["replace Node node-1: what is on its own disks is lost", VOLUME], False),
        ("cut", ["replace Node node-1: what is on its own disks is lost"], False),
        ("failed", ["replace Node node-1 (id): what is on its own disks is lost"], True),
    ],
)
def test_nothing_goes_but_what_is_broken_and_never_data(world, state, asks, goes):
    world.states, world.asks = {"node-1": state}, asks
    world.looks(10)
    assert bool(world.repairs) is goes
    if not goes:
        assert world.kinds == ["amiss", "person"], "asked once, told once"
        assert "gpubed up lab" in world.events[-1].outcome
        assert world.watch().memory.repairs == (), "nothing was done, so nothing is spent"


def test_while_another_run_has_the_cluster_it_waits(world):
    world.states = {"node-1": "missing"}
    one = world.watch()
    world.looks(1, of=one)
    with runlock.hold(world.cluster.state, "configure"):
        assert world.looks(3, of=one) == ["busy"] * 3
    assert (world.repairs, one.memory.repairs) == ([], ())
    assert world.looks(2, of=one) == ["amiss", "well"], "what it did may boot yet"


def test_a_run_that_comes_first_costs_nothing(world):
    world.states, world.fails = {"node-1": "missing"}, Locked("lab is held by `gpubed up`")
    one = world.watch()
    assert world.looks(2, of=one) == ["amiss", "amiss"]
    assert (one.memory.repairs, one.memory.failures) == ((), 0)
    world.fails = None
    assert world.looks(1, of=one) == ["well"]


def test_a_job_is_not_disturbed(world):
    world.states = {"node-1": "missing"}
    with runlock.measuring(world.cluster.state, "run", shared=True):
        world.looks(3)
    assert world.repairs == []
    assert world.kinds == ["amiss", "waits"]


def test_a_training_that_outlives_its_nodes_is_no_reason_to_wait(world):
    world.states = {"node-1": "missing"}
    lock = checkpoints.lock(world.cluster, "mine")
    other = runlock.measuring(world.cluster.state, "run", shared=True)
    with runlock.locked(lock, checkpoints.ELASTIC), other:
        world.looks(2)
    assert len(world.repairs) == 1, "whoever measures besides was the last to write its name"


def test_a_cluster_that_is_down_ends_it_and_does_not_come_back(world):
    world.cluster.allocation.unlink()
    for path in world.cluster.project.pulumi.glob(".pulumi/stacks/*/*"):
        path.unlink()
    done = CliRunner().invoke(cli.build(), ["watch", "lab", "--json"], standalone_mode=False)
    assert done.return_value == 0
    assert json.loads(done.stdout)["event"] == "gone"
    assert world.repairs == []
    assert {path.name for path in world.cluster.state.iterdir()} <= {"secrets", "testbeds"}


def test_while_a_down_removes_it_nothing_is_missing(world):
    world.states = dict.fromkeys(NAMES, "missing")
    with runlock.hold(world.cluster.state, "down"):
        assert world.looks(3) == ["busy"] * 3
    assert world.events == []


def test_into_a_folder_that_goes_nothing_is_written(world, monkeypatch):
    """A `down` begins while nodes are looked at, and the first of them no longer answer."""
    with ExitStack() as held:

        def look(*_):
            held.enter_context(runlock.hold(world.cluster.state, "down"))
            raise GpubedError("half of it is gone")

        monkeypatch.setattr(condition, "look", look)
        before = {*world.cluster.state.iterdir()}
        one = world.watch()
        world.looks(1, of=one)
        one.tell("ended", "interrupted")
        lock = world.cluster.state / "lock"
        assert {*world.cluster.state.iterdir()} == {*before, lock}


def test_a_down_that_did_not_end_is_not_undone(world):
    world.cluster.removing.touch()
    world.states = {"node-1": "missing"}
    world.looks(4)
    assert (world.repairs, world.kinds) == ([], ["amiss", "person"])
    assert "gpubed down lab" in world.events[-1].outcome


def test_a_cluster_that_went_down_between_look_and_repair_stays_down(world):
    world.states = {"node-1": "missing"}
    one, real = world.watch(), world.up

    def late(cluster, *words, **options):
        cluster.allocation.unlink()
        real(cluster, *words, **options)

    up.up = late
    assert world.looks(2, of=one) == ["amiss", "amiss"]
    assert world.repairs == []


def test_up_asks_whether_it_is_still_wanted_once_it_has_the_cluster(world):
    held = []

    def still():
        held.append(runlock.holder(world.cluster.state).verb)
        raise Locked("another run has changed lab meanwhile")

    with pytest.raises(Locked):
        REAL_UP(world.cluster, "embedded", approve=pytest.fail, still_wanted=still)
    assert held == ["up"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.spec.write_text(SPEC.replace("3", "5")), "not what was applied last"),
        (lambda c: c.spec.write_text("nodes: ["), "cluster.yml"),
        (lambda c: c.private_key.unlink(), "SSH key is lost"),
        (lambda c: next(c.project.pulumi.glob(".pulumi/*/*/lab.json")).unlink(), "state"),
        (lambda c: c.allocation.write_text("{"), "cannot be read"),
    ],
)
def test_what_is_more_than_a_repair_is_for_a_person(world, change, said):
    change(world.cluster)
    world.states = {"node-1": "missing"}
    assert world.looks(4) == ["amiss"] * 4
    assert world.repairs == []
    assert world.kinds[-1] == "person"
    assert said in world.events[-1].why
    assert "gpubed" in world.events[-1].outcome


def test_roles_that_nobody_applied_are_for_a_person(world):
    """A variable that was edited, or a new version of gpubed."""
    world.cluster.spec.write_text(SPEC.replace("configure: false\n", ""))
    copies.keep(world.cluster, "local")
    world.states = {"node-1": "missing"}
    world.looks(3)
    assert world.repairs == []
    assert "roles are due that nobody has applied yet: base" in world.events[-1].why


def test_a_node_that_was_taken_out_of_use_is_left_alone(world, monkeypatch):
    """Also when it no longer answers: somebody may be at work on it."""
    monkeypatch.setattr(due, "now", lambda *_: {})
    world.cluster.spec.write_text(SPEC.replace("configure: false\n", ""))
    copies.keep(world.cluster, "local")
    held = Quarantine(reason="fan is loud", since="2030-01-01T00:00:00Z")
    world.unwell = [NodeHealth(node="node-1", quarantine=held)]
    world.looks(1)
    world.states, world.unwell = {"node-1": "stopped"}, []
    world.looks(3)
    assert (world.repairs, world.kinds) == ([], ["left"])
    assert "fan is loud" in world.events[0].why
    world.states["node-2"] = "missing"
    world.looks(3)
    assert world.repairs == [], "`up` would start node-1, too"
    assert world.kinds[-1] == "person"
    assert "node-2 is missing: to repair it would touch what is left alone" in world.events[-1].why
    del world.states["node-1"]
    world.looks(1)
    assert world.states == {}, "node-1 answers, and is no longer in quarantine"


def test_a_full_disk_is_for_a_person(world):
    world.rest = {"full": {"node-1": "/var is 100 % full"}}
    assert world.looks(2) == ["amiss", "amiss"]
    assert world.kinds == ["person"]
    assert "gpubed ssh lab node-1" in world.events[0].outcome


def test_a_testbed_that_cannot_be_asked_is_waited_for(world):
    world.states = PrerequisiteMissing("no Docker daemon answers", "start it")
    assert world.looks(3) == ["amiss"] * 3
    world.states = {}
    assert world.looks(1) == ["well"]
    assert world.kinds == ["unasked", "well"]
    assert world.events[0].why == "local cannot be asked: no Docker daemon answers"


def test_once_too_counts_anew_after_another_run(world):
    world.states = {"node-1": "missing"}
    world.looks(1)
    with runlock.hold(world.cluster.state, "configure"):
        world.looks(1)
    world.looks(1)
    assert world.repairs == []


def test_two_looks_are_two_that_saw_something(world):
    one = world.watch()
    for states in ({"node-1": "missing"}, PrerequisiteMissing("no answer"), {"node-1": "missing"}):
        world.states = states
        world.looks(1, of=one)
    assert world.repairs == []


class Lender:
    """STAND-IN for a testbed with an end, and a most that it grants."""

    def __init__(self, until, most):
        self.until, self.most = until, most

    def __getattr__(self, name):
        return getattr(REAL, name)

    def bind(self, *_):
        return self

    def lease(self, *_):
        return Lease(self.until)

    def renew(self, _allocation, until):
        if until > self.most:
            raise Refused("the project has used up its hours")
        self.until = until
        return Lease(until)


@pytest.mark.parametrize("verb", [None, "bench"])
def test_a_lease_is_renewed_also_while_a_run_has_the_cluster(world, monkeypatch, verb):
    """A campaign holds it for days, and ends with the lease."""
    lender = Lender(world.now + HOUR, world.now + 1000 * HOUR)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    with runlock.hold(world.cluster.state, verb) if verb else nullcontext():
        world.looks(2)
    assert lender.until == datetime(2030, 1, 2, tzinfo=UTC)
    assert world.kinds == ["lease"]
    assert "granted until" in world.events[0].outcome


def test_an_end_that_stays_is_prepared_once(world, monkeypatch):
    prepared = []
    monkeypatch.setattr(before_end, "prepare", lambda *_: prepared.append(1) or ["collected"])
    lender = Lender(world.now + HOUR / 4, world.now + HOUR / 4)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    for _ in range(3):
        world.looks(1)  # a new process each time, as of cron
    assert prepared == [1]
    assert [event.outcome for event in world.events] == [
        "the project has used up its hours",
        "collected",
    ]


def test_nodes_that_do_not_know_of_a_renewal_are_told_again_and_again(world, monkeypatch):
    """They would end what the others go on with; it is said once, and when all know."""
    asked, faults = [], [GpubedError("node-1 does not know"), GpubedError("node-1 does not know")]

    def tell(*_):
        asked.append(1)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(lease, "tell_nodes", tell)
    world.looks(4)
    assert len(asked) == 4
    assert [(event.event, event.why, event.outcome) for event in world.events] == [
        ("lease", "nodes that mind it", "node-1 does not know"),
        ("well", "all nodes know until when the lease lasts", ""),
    ]


def test_nodes_of_a_lease_that_is_over_are_not_asked_for_again(world, monkeypatch):
    lender = Lender(world.now + HOUR, world.now)
    monkeypatch.setattr(registry, "backend", lambda _: lender)
    monkeypatch.setattr(before_end, "prepare", lambda *_: [])
    world.looks(1)
    world.now += 2 * HOUR
    world.states = dict.fromkeys(NAMES, "missing")
    world.looks(3)
    assert world.repairs == []
    assert "gpubed up lab --refresh" in world.events[-1].outcome


def test_once_remembers_the_look_of_the_process_before(world):
    world.states = {"node-1": "missing"}
    run = [["watch", "lab", "--once", "--json"] for _ in range(3)]
    done = [CliRunner().invoke(cli.build(), words, standalone_mode=False) for words in run]
    assert [each.return_value for each in done] == [1, 0, 0]
    assert len(world.repairs) == 1
    documents = [json.loads(line) for each in done for line in each.stdout.splitlines()]
    assert [document["event"] for document in documents] == ["amiss", "repair"]
    assert set(documents[0]) == {"schema", "time", "event", "why", "outcome", "nodes"}
    assert documents[1]["schema"] == "gpubed/watch/1"
    assert [document["nodes"] for document in documents] == [["node-1"], ["node-1"]]


def test_repairs_count_though_a_newer_version_wrote_them(world):
    written = {"version": 1, "repairs": [(world.now - HOUR).isoformat()], "failures": 2, "newer": 1}
    world.cluster.watch.write_text(json.dumps(written))
    memory = world.watch().memory
    assert (len(memory.repairs), memory.failures) == (1, 2)


def test_a_damaged_memory_counts_as_none(world):
    world.states = {"node-1": "missing"}
    world.looks(1)
    world.cluster.watch.write_text('{"version": 2}')
    assert world.looks(1) == ["amiss"]
    assert world.repairs == []


def test_ctrl_c_is_logged_and_loses_nothing(world, monkeypatch):
    world.states = {"node-1": "missing"}

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpubed.cli.commands.watch.time.sleep", interrupt)
    done = CliRunner().invoke(cli.build(), ["watch", "lab"], standalone_mode=False)
    assert done.return_value == 130
    log = (world.cluster.logs / "watch.log").read_text()
    assert "ended: interrupted" in log
    assert "node-1" in world.watch().memory.amiss


@pytest.fixture
def watching(world, monkeypatch):
    """A function that watches for some looks, and returns how long was waited after each."""

    def watch(looks, before=lambda number: None):
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == looks:
                raise KeyboardInterrupt
            before(len(waits))

        monkeypatch.setattr("gpubed.cli.commands.watch.time.sleep", sleep)
        done = CliRunner().invoke(cli.build(), ["watch", "lab"], standalone_mode=False)
        return waits, done

    return watch


@pytest.mark.parametrize(
    ("error", "why", "traced"),
    [
        (ValueError("not enough \x1b[2Jvalues"), "ValueError: not enough values", True),
        (GpubedError("no route", "see the cable"), "no route (see the cable)", False),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left", True),
    ],
)
def test_a_look_that_breaks_off_does_not_end_the_watch(
    world, watching, monkeypatch, error, why, traced
):
    healthy = registry.bound

    def broken(*_):
        raise error

    def heal(number):
        if number == 8:
            monkeypatch.setattr(registry, "bound", healthy)

    monkeypatch.setattr(registry, "bound", broken)
    waits, done = watching(10, heal)
    assert waits == [60, 120, 240, 480, 960, 1800, 1800, 1800, 60, 60]
    assert done.return_value == 130
    log = (world.cluster.logs / "watch.log").read_text()
    assert log.count(" failed: a look failed: ") == 1, "of one error one event"
    assert why in log
    assert ("\n  Traceback (most recent call last):\n" in log) is traced
    assert "well: lab can be looked at again" in log
    assert "\x1b" not in log


def test_another_error_is_another_event(world, watching, monkeypatch):
    errors = iter([KeyError("a"), KeyError("b"), KeyError("b")])

    def broken(*_):
        raise next(errors)

    monkeypatch.setattr(registry, "bound", broken)
    watching(3)
    log = (world.cluster.logs / "watch.log").read_text()
    assert (log.count(": KeyError: 'a'"), log.count(": KeyError: 'b':")) == (1, 1)


def test_a_look_that_breaks_off_is_no_look(world, watching, monkeypatch):
    """A node that is amiss before and after it may have booted twice."""
    healthy = registry.bound
    world.states = {"node-1": "missing"}
    world.looks(1)

    def broken(*_):
        raise ValueError

    monkeypatch.setattr(registry, "bound", broken)
    watching(1)
    monkeypatch.setattr(registry, "bound", healthy)
    assert world.looks(1) == ["amiss"]
    assert world.repairs == []


@pytest.mark.parametrize("error", [UsageError("wrong"), BrokenPipeError()])
def test_what_no_time_heals_ends_the_watch(world, watching, monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr(registry, "bound", broken)
    waits, done = watching(3)
    assert waits == []
    assert done.exception is error


def test_what_nodes_say_moves_no_cursor_in_the_log(world):
    said = "\x1b]0;title\x07\x1b[2Jred\u202eturned\x00\x9b1m" + "x" * 5_000_000
    world.rest = {"full": {"node-1": said}}
    world.looks(1)
    log = (world.cluster.logs / "watch.log").read_text()
    assert "redturned1" not in log
    assert "node-1: redturnedx" in log
    assert len(log) < 5000


def test_a_cluster_has_one_watch(world):
    with runlock.locked(world.cluster.watching, "watch"):
        done = CliRunner().invoke(cli.build(), ["watch", "lab"], standalone_mode=False)
    assert isinstance(done.exception, Locked)
    assert "`gpubed watch`" in done.exception.message


@pytest.mark.parametrize(
    "words", [("--every", "soon"), ("--every", "1 s"), ("--once", "--install")]
)
def test_what_makes_no_sense_is_refused(world, words):
    done = CliRunner().invoke(cli.build(), ["watch", "lab", *words], standalone_mode=False)
    assert isinstance(done.exception, UsageError)


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A systemd of the user that writes down what it is told; a STAND-IN, and so is loginctl."""
    folder, told = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    for name in ("systemctl", "loginctl"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {told}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return told


def test_a_unit_runs_it_in_this_project(world, systemd, monkeypatch):
    monkeypatch.setenv("OS_PASSWORD", "hunter2")
    monkeypatch.setenv("OS_CLOUD", "50%")
    words = ["watch", "lab", "--every", "5 min", "--install"]
    done = CliRunner().invoke(cli.build(), words, standalone_mode=False)
    assert done.return_value == 0
    unit = watch_unit.file(world.cluster).read_text()
    root = world.cluster.project.root
    assert f"WorkingDirectory={root}\n" in unit
    assert f'Environment="GPUBED_ROOT={root}"\n' in unit
    assert 'Environment="OS_CLOUD=50%%"\n' in unit
    assert 'gpubed" "watch" "lab" "--every" "5 min" "--repairs" "5"\n' in unit
    assert "Restart=on-failure\n" in unit
    assert "hunter2" not in unit
    name = watch_unit.file(world.cluster).name
    assert f"systemctl --user enable --now {name}" in systemd.read_text()
    assert "loginctl enable-linger" in done.stderr


def test_a_unit_is_removed_also_once_the_cluster_is_no_more(world, systemd):
    CliRunner().invoke(cli.build(), ["watch", "lab", "--install"], standalone_mode=False)
    world.cluster.spec.unlink()
    done = CliRunner().invoke(
        cli.build(), ["watch", "lab", "--remove", "--json"], standalone_mode=False
    )
    assert json.loads(done.stdout)["unit"] == str(watch_unit.file(world.cluster))
    assert not watch_unit.file(world.cluster).exists()
    assert "disable --now" in systemd.read_text()
    assert watch_unit.remove(world.cluster) is None


def test_two_projects_have_two_units(world, tmp_path):
    other = Project(tmp_path / "other").cluster("lab")
    assert watch_unit.file(other).name != watch_unit.file(world.cluster).name


def test_where_no_systemd_answers_nothing_is_written(world, systemd):
    path = systemd.parent / "bin" / "systemctl"
    path.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    done = CliRunner().invoke(cli.build(), ["watch", "lab", "--install"], standalone_mode=False)
    assert isinstance(done.exception, PrerequisiteMissing)
    assert "Failed to connect to bus" in done.exception.message
    assert not watch_unit.file(world.cluster).exists()


IDLE = SPEC.replace(
    "configure: false\n", "lease: {idle: {after: 2 h, then: release, hook: '%s'}}\n"
)


class Unused:
    """What nodes say of their use (STAND-IN), and what is asked of them and of `down`."""

    def __init__(self, world, monkeypatch):
        self.world, self.told, self.downs, self.saved = world, [], [], 0
        self.use, self.saving = Use(0.0, "alice: a terminal on node-0", "1"), lambda: None
        self.began, self.fails, self.kept = world.now, None, ["volume shared"]
        monkeypatch.setattr(due, "now", lambda *_: {})
        monkeypatch.setattr(uses, "look", lambda *_: self.say())
        monkeypatch.setattr(uses, "warn", self.warn)
        monkeypatch.setattr(before_end, "prepare", self.prepare)
        monkeypatch.setattr(down, "data_of", lambda *_: self.kept)
        monkeypatch.setattr(down, "down", self.down)
        self.hook = world.cluster.project.root / "hook.log"
        words = "$GPUBED_CLUSTER $GPUBED_IDLE"
        self.policy(IDLE % f"echo {words} >> {self.hook}")

    def policy(self, text):
        self.world.cluster.spec.write_text(text)
        copies.keep(self.world.cluster, "local")

    def say(self):
        idle_s = (self.world.now - self.began).total_seconds()
        return replace(self.use, idle_s=idle_s if self.began else 0.0)

    def use_it(self, why="bob: a notebook on node-1"):
        self.began = self.world.now
        self.use = replace(self.use, why=why, spell=str(self.world.now))

    def warn(self, _cluster, nodes, text, back=False):
        if self.fails:
            raise self.fails
        assert len(nodes) == 3
        self.told.append(("back" if back else "warn", text))

    def prepare(self, *_):
        self.saved += 1
        self.saving()
        return ["collected 2 run(s)"]

    def down(self, cluster, _engine, *, keep_data):
        with runlock.hold(cluster.state, "down"):
            assert runlock.measurer(cluster.state), "no job may begin meanwhile"
            self.downs.append(keep_data)
            cluster.allocation.unlink()
            for path in cluster.project.pulumi.glob(".pulumi/stacks/*/*"):
                path.unlink()
            shutil.rmtree(cluster.logs)
        return Removal(["Node node-0"], ["volume shared"], [], [])


@pytest.fixture
def unused(world, monkeypatch):
    return Unused(world, monkeypatch)


def test_an_unused_cluster_is_released_after_its_warning(world, unused):
    looked = world.looks(200)
    assert looked.index("gone") == 150, "after 2 h, and the half hour of the warning"
    assert (unused.downs, unused.saved) == ([True], 1)
    assert [what for what, _ in unused.told] == ["warn"]
    assert unused.told[0][1] == (
        "gpubed: nobody has used lab for 120 min: it is released in 30 min unless somebody uses it"
    )
    assert unused.hook.read_text() == "lab warn\nlab released\n"
    assert (world.cluster.logs / "watch.log").read_text().splitlines() == [
        "2030-01-01T02:00:00Z idle: last use 120 min ago: alice: a terminal on node-0: warned: it "
        "is released in 30 min unless somebody uses it",
        "2030-01-01T02:30:00Z idle: last use 150 min ago: alice: a terminal on node-0: collected "
        "2 run(s); released 3 node(s); kept volume shared",
    ]


def test_without_a_policy_nodes_are_not_asked(world, unused, monkeypatch):
    unused.policy(SPEC)
    monkeypatch.setattr(uses, "look", lambda *_: pytest.fail("asked"))
    assert set(world.looks(10, every=HOUR)) == {"well"}


def test_to_warn_is_all_where_nothing_more_is_wanted(world, unused):
    unused.policy((IDLE % "false").replace("then: release", "then: warn"))
    world.looks(10, every=HOUR)
    assert (unused.downs, len(unused.told)) == ([], 1)
    assert "whoever needs it no more" in unused.told[0][1]
    assert world.events[-1].outcome.endswith("; the hook failed (1): no word")


@pytest.mark.parametrize("why", ["x" * 200_000, "a\0b", "\ud800", "\x1b[2J"])
def test_a_hook_is_told_why_whatever_that_is(world, unused, why):
    """The kernel refuses a variable that is longer than 128 KiB, and every NUL."""
    heard = world.cluster.project.root / "why.log"
    unused.policy((IDLE % f'printf %s "$GPUBED_IDLE_WHY" > {heard}').replace("release", "warn"))
    unused.use_it(why)
    world.looks(10, every=HOUR)
    assert [what for what, _ in unused.told] == ["warn"]
    assert "the hook" not in world.events[-1].outcome
    assert len(heard.read_text()) <= 1001
    assert heard.read_text().isprintable()


def test_a_hook_that_cannot_be_started_warns_nobody_twice(world, unused, monkeypatch):
    unused.policy((IDLE % "true").replace("then: release", "then: warn"))
    monkeypatch.setenv("PATH", str(world.cluster.project.root))
    world.looks(10, every=HOUR)
    assert len(unused.told) == 1
    assert "the hook cannot be started: " in world.events[-1].outcome


def test_a_watch_that_is_killed_in_the_hook_warns_nobody_twice(world, unused, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gpubed.cluster.idle.hook", killed)
        with pytest.raises(KeyboardInterrupt):
            world.looks(10, every=HOUR)
    world.looks(1, every=MINUTE)
    assert len(unused.told) == 1


def test_any_use_takes_the_warning_back(world, unused):
    one = world.watch()
    world.looks(140, of=one)
    unused.use_it()
    world.looks(100, of=one)
    assert [what for what, _ in unused.told] == ["warn", "back"]
    assert unused.hook.read_text() == "lab warn\nlab back\n"
    assert "bob: a notebook on node-1" in world.events[-1].why
    assert unused.downs == []


def test_a_use_that_no_look_saw_counts_too(world, unused):
    """The watch was off for hours, and somebody came and went after the warning."""
    world.looks(125)
    unused.use_it()
    world.now += 5 * HOUR
    world.looks(1)
    assert [what for what, _ in unused.told] == ["warn", "back"]
    assert unused.downs == []


def test_a_clock_of_the_controller_that_jumps_ends_no_warning(world, unused):
    world.looks(125)
    world.now += 10 * HOUR
    unused.began += 10 * HOUR
    world.looks(10)
    assert unused.downs == []
    world.looks(30)
    assert unused.downs == [True]


def test_who_comes_while_results_are_saved_keeps_it(world, unused):
    unused.saving = unused.use_it
    world.looks(155)
    assert (unused.saved, unused.downs) == (1, [])
    assert [what for what, _ in unused.told] == ["warn", "back"]
    assert "not released: bob: a notebook on node-1" in world.events[1].outcome


def test_results_that_cannot_be_saved_keep_it(world, unused):
    def fail():
        raise GpubedError("the disk is full", "free space")

    unused.saving = fail
    world.looks(160)
    assert unused.downs == []
    assert world.kinds == ["idle", "idle"], "told once"
    assert world.events[-1].why == "the disk is full (free space)"


def test_a_warning_that_did_not_reach_everybody_is_none(world, unused):
    unused.fails = GpubedError("node-1 does not answer")
    world.looks(200)
    assert (unused.told, unused.downs, world.watch().memory.warned) == ([], [], None)
    unused.fails = None
    world.looks(31)
    assert unused.downs == [True]


@pytest.mark.parametrize("who", ["run", "training", "quarantine"])
def test_what_only_the_controller_knows_is_a_use(world, unused, who):
    held = {
        "run": lambda: runlock.measuring(world.cluster.state, "run", shared=True),
        "training": lambda: runlock.locked(
            checkpoints.lock(world.cluster, "mine"), checkpoints.ELASTIC
        ),
        "quarantine": nullcontext,
    }[who]
    if who == "quarantine":
        quarantine = Quarantine(reason="fan is loud", since="2030-01-01T00:00:00Z")
        world.unwell = [NodeHealth(node="node-1", quarantine=quarantine)]
    with held():
        world.looks(200)
    assert (unused.told, unused.downs) == ([], [])


def test_the_log_outlives_a_folder_that_goes_also_where_the_state_is_lost(world):
    world.watch().tell("idle", "nobody used it")
    shutil.rmtree(world.cluster.project.pulumi)
    with watch_log.kept(world.cluster):
        shutil.rmtree(world.cluster.state)
    assert "nobody used it" in (world.cluster.logs / "watch.log").read_text()


def test_a_policy_that_is_taken_away_takes_its_warning_along(world, unused):
    world.looks(125)
    unused.policy(SPEC.replace("configure: false\n", ""))
    world.looks(100)
    assert [what for what, _ in unused.told] == ["warn", "back"]
    assert unused.downs == []


def test_another_run_that_has_the_cluster_is_waited_for(world, unused):
    world.looks(125)
    with runlock.hold(world.cluster.state, "configure"):
        world.looks(60)
    assert unused.downs == []
