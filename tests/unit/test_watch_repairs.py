"""What `gpubed watch` repairs, and above all what it does not."""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import due
from gpubed.configuration.health import NodeHealth, Quarantine
from gpubed.configuration.systemd import Stopped
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked
from support.known import apply, mark
from support.watched import HOUR, MINUTE, NAMES, SPEC, world

__all__ = ["world"]

VOLUME = "replace Volume shared (size): a new one takes its place, the old one stays"


def test_what_is_amiss_twice_is_repaired_and_the_log_says_why(world):
    world.states = {"node-1": "missing"}
    assert world.looks(3) == ["amiss", "well", "well"]
    assert len(world.repairs) == 1
    log = (world.cluster.logs / "watch.log").read_text().splitlines()
    first, second = log
    again = "looked at again before it is repaired"
    assert first == f"2030-01-01T00:00:00Z amiss: node-1 is missing: {again}"
    assert second.startswith("2030-01-01T00:01:00Z repair: node-1 is missing: repaired in ")
    assert world.events[-1].nodes == ("node-1",)


def test_a_node_that_boots_is_given_its_time(world):
    """120 s, as the local testbed says."""
    world.states = {"node-1": "unreachable"}
    one = world.watch()
    world.looks(2, of=one)
    assert world.repairs == []
    world.looks(1, of=one)
    assert len(world.repairs) == 1


def test_failed_repairs_are_further_and_further_apart(world):
    world.states, world.fails = {"node-1": "missing"}, GpubedError("no room", "make room")
    world.looks(100, of=world.watch(repairs=100))
    apart = [b - a for a, b in zip(world.repairs, world.repairs[1:], strict=False)]
    assert [each // MINUTE for each in apart] == [2, 2, 4, 8, 16, 30, 30]
    assert world.kinds == ["amiss", *["repair"] * 8]
    assert world.events[1].outcome == "failed: no room (make room); not again for 1 min"
    world.fails = None
    world.looks(40, of=world.watch(repairs=100))
    assert world.watch().journal.memory.failures == 0


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
        assert world.watch().journal.memory.repairs == (), "nothing was done, so nothing is spent"


def test_while_another_run_has_the_cluster_it_waits(world):
    world.states = {"node-1": "missing"}
    one = world.watch()
    world.looks(1, of=one)
    with runlock.hold(world.cluster.state, "configure"):
        assert world.looks(3, of=one) == ["busy"] * 3
    assert (world.repairs, one.journal.memory.repairs) == ([], ())
    assert world.looks(2, of=one) == ["amiss", "well"], "what it did may boot yet"


def test_a_job_is_not_disturbed(world):
    world.states = {"node-1": "missing"}
    with runlock.measuring(world.cluster.state, "run", shared=True):
        world.looks(3)
    assert world.repairs == []
    assert world.kinds == ["amiss", "waits"]


def test_a_cluster_that_is_down_ends_it_and_does_not_come_back(world):
    world.cluster.allocation.unlink()
    for path in world.cluster.project.pulumi.glob(".pulumi/stacks/*/*"):
        path.unlink()
    done = CliRunner().invoke(cli.build(), ["watch", "lab", "--json"], standalone_mode=False)
    assert done.return_value == 0
    assert json.loads(done.stdout)["event"] == "gone"
    assert world.repairs == []
    assert {path.name for path in world.cluster.state.iterdir()} <= {
        "secrets",
        "specifications",
        "cluster.json",
    }


@pytest.mark.parametrize(("goes", "told"), [("node", ["amiss", "person"]), ("file", ["person"])])
def test_a_down_that_did_not_end_is_not_undone(world, goes, told):
    """Whichever went first: a node, or the file that says which ones there are."""
    mark(world.cluster, removing="")
    if goes == "node":
        world.states = {"node-1": "missing"}
    else:
        world.cluster.allocation.unlink()
    world.looks(4)
    assert (world.repairs, world.kinds) == ([], told)
    assert "a `down` of lab was begun" in world.events[-1].why
    assert "gpubed down lab" in world.events[-1].outcome


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.spec.write_text(SPEC.replace("3", "5")), "was changed since it was applied"),
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


def test_a_node_that_was_taken_out_of_use_is_left_alone(world, monkeypatch):
    """Also when it no longer answers: somebody may be at work on it."""
    monkeypatch.setattr(due, "now", lambda *_: {})
    world.cluster.spec.write_text(SPEC.replace("configure: false\n", ""))
    apply(world.cluster, "local")
    held = Quarantine(reason="fan is loud", since="2030-01-01T00:00:00Z")
    world.unwell = [NodeHealth(node="node-1", quarantine=held)]
    world.looks(1)
    world.states, world.unwell = {"node-1": "stopped"}, []
    world.looks(3)
    assert (world.repairs, world.kinds) == ([], ["left"])
    assert "fan is loud" in world.events[0].why
    assert "to repair it: gpubed up lab" in world.events[0].outcome
    world.states["node-2"] = "missing"
    world.looks(3)
    assert world.repairs == [], "`up` would start node-1, too"
    assert world.kinds[-1] == "person"
    assert "node-2 is missing: to repair it would touch what is left alone" in world.events[-1].why
    del world.states["node-1"]
    world.looks(1)
    assert world.states == {}, "node-1 answers, and is no longer in quarantine"


STOPPED = {"stopped": (Stopped("slurm", "slurmd.service", "node-2", "failed"),)}


def test_where_no_node_answers_nothing_is_repaired_and_nothing_spent(world):
    """The way is down for hours, while the testbed itself answers."""
    world.states, world.rest = dict.fromkeys(NAMES, "unreachable"), {"all_silent": True}
    assert world.looks(60) == ["amiss"] * 60
    assert (world.repairs, world.kinds) == ([], ["unasked"])
    assert world.events[0].why == "no node of lab answers"
    assert world.events[0].outcome.endswith("where they hang: gpubed up lab")
    world.states, world.rest = {}, {}
    assert world.looks(1) == ["well"]
    assert world.kinds == ["unasked", "well"]
    world.states = {"node-1": "missing"}
    world.looks(2)
    assert len(world.repairs) == 1


@pytest.mark.parametrize(
    ("state", "said"), [("hidden", "on the way to it"), ("away", "only you can check its power")]
)
def test_what_up_can_do_nothing_about_is_told_once_and_no_fault(world, state, said):
    world.states = {"node-1": state}
    assert world.looks(10) == ["amiss"] * 10
    assert (world.repairs, world.kinds) == ([], ["unasked"])
    assert said in world.events[0].why


def test_a_repair_that_fails_as_the_last_one_did_is_not_counted_again(world):
    """One host that stays dead leaves the day's repairs to others."""
    world.rest, world.fails = STOPPED, GpubedError("node-1 does not answer SSH")
    world.looks(200)
    assert len(world.repairs) > 5
    assert len(world.watch().journal.memory.repairs) == 1
    assert "spent" not in world.kinds
    world.fails, world.rest = None, {}
    world.looks(1)
    world.states = {"node-2": "missing"}
    world.looks(2)
    assert world.events[-1].why == "node-2 is missing"


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


def test_what_nodes_say_moves_no_cursor_in_the_log(world):
    said = "\x1b]0;title\x07\x1b[2Jred\u202eturned\x00\x9b1m" + "x" * 5_000_000
    world.rest = {"full": {"node-1": said}}
    world.looks(1)
    log = (world.cluster.logs / "watch.log").read_text()
    assert "redturned1" not in log
    assert "node-1: redturnedx" in log
    assert len(log) < 5000


def test_a_watch_ends_with_its_cluster_also_where_another_has_its_name_by_now(world, watching):
    """`down` takes its lock along, and a second watch would find none."""
    world.states = {"node-1": "missing"}

    def made_anew(looks):
        if looks == 1:
            world.cluster.watching.unlink()
            world.cluster.watch.unlink()

    waits, done = watching(5, made_anew)
    assert (len(waits), done.return_value, world.repairs) == (1, 0, [])
    assert not world.cluster.watch.exists(), "what it knows is of the former one"
    assert "gone: lab was taken down meanwhile" in (world.cluster.logs / "watch.log").read_text()


def test_a_cluster_has_one_watch(world):
    with runlock.locked(world.cluster.watching, "watch"):
        done = CliRunner().invoke(cli.build(), ["watch", "lab"], standalone_mode=False)
    assert isinstance(done.exception, Locked)
    assert "`gpubed watch`" in done.exception.message
