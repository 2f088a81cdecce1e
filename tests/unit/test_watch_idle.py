"""`gpubed watch` warns of a cluster that nobody uses, and releases it. Its use is a STAND-IN."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from gpubed.cluster import down, drivers, lease_policy
from gpubed.cluster.down import Removal
from gpubed.configuration import due, health
from gpubed.configuration import usage as uses
from gpubed.configuration.health import NodeHealth, Quarantine
from gpubed.configuration.usage import Use
from gpubed.core import runlock
from gpubed.core.errors import GpubedError
from gpubed.jobs.runs import checkpoints
from support.known import apply, mark
from support.watched import HOUR, SPEC, world

pytestmark = pytest.mark.process

__all__ = ["world"]

IDLE = SPEC.replace(
    "configure: false\n", "lease: {idle: {after: 2 h, then: release, hook: '%s'}}\n"
)


UNFINISHED = "the release of lab did not come to its end"


class Unused:
    """What nodes say of their use (STAND-IN), and what is asked of them and of `down`."""

    def __init__(self, world, monkeypatch):
        self.world, self.told, self.downs, self.saved = world, [], [], 0
        self.use = Use(0.0, "alice: a terminal on node-0", "node-0=1\nnode-1=1")
        self.saving = lambda: None
        self.began, self.fails, self.breaks = world.now, None, []
        self.silent = ""
        monkeypatch.setattr(due, "now", lambda *_: {})
        monkeypatch.setattr(health, "unwell", lambda _: world.unwell)
        monkeypatch.setattr(uses, "look", self.say)
        monkeypatch.setattr(uses, "warn", self.warn)
        monkeypatch.setattr(lease_policy, "prepare", self.prepare)
        monkeypatch.setattr(down, "down", self.down)
        self.hook = world.cluster.project.root / "hook.log"
        words = "$GPUBED_CLUSTER $GPUBED_IDLE"
        self.policy(IDLE % f"echo {words} >> {self.hook}")

    def policy(self, text):
        self.world.cluster.spec.write_text(text)
        apply(self.world.cluster, "local")

    def say(self, _cluster, ignore_silent=False):
        idle_s = (self.world.now - self.began).total_seconds()
        use = replace(self.use, idle_s=idle_s)
        if not self.silent:
            return use
        if not ignore_silent:
            return uses.used(use, "not all could be asked")
        left = replace(use, spell=use.spell.splitlines()[0])
        return left if self.silent == "some" else None

    def use_it(self, why="bob: a notebook on node-1"):
        self.began = self.world.now
        self.use = replace(self.use, why=why, spell=str(self.world.now))

    def warn(self, _cluster, nodes, text, back=False):
        if self.fails:
            raise self.fails
        assert len(nodes) == 3
        self.told.append(("back" if back else "warn", text))

    def prepare(self, _cluster, again=False):
        assert again == self.world.watch().journal.memory.warned.saved
        self.saved += 1
        self.saving()
        return ["collected 2 run(s)"]

    def down(self, cluster, _engine, *, keep_data, originator):
        with runlock.hold(cluster.state, "down"):
            assert runlock.measurer(cluster.state), "no job may begin meanwhile"
            self.downs.append(keep_data)
            mark(cluster, removing=originator)
            # What depends on nodes goes before them, and the state once all of it is gone.
            drivers.driver("configuration").delete("lab/configuration", {"cluster": "lab"})
            if self.breaks:
                return self.breaks.pop(0)()
            self.forget_state()
            mark(cluster, removing=None)
        return Removal(["Node node-0"], ["volume shared"], [], [])

    def forget_state(self):
        for path in self.world.cluster.project.pulumi.glob(".pulumi/stacks/*/*"):
            path.unlink()


@pytest.fixture
def unused(world, monkeypatch):
    return Unused(world, monkeypatch)


def test_an_unused_cluster_is_released_after_its_warning(world, unused):
    looked = world.looks(200)
    assert looked.index("gone") == 151, "after 2 h, the half hour of the warning, and a last look"
    assert (unused.downs, unused.saved) == ([True], 2)
    assert [what for what, _ in unused.told] == ["warn"]
    assert unused.told[0][1] == (
        "gpubed: nobody has used lab for 120 min: it is released in 30 min unless somebody uses it"
    )
    assert unused.hook.read_text() == "lab warn\nlab released\n"
    assert (world.cluster.logs / "watch.log").read_text().splitlines() == [
        "2030-01-01T02:00:00Z idle: last use 120 min ago: alice: a terminal on node-0: warned: it "
        "is released in 30 min unless somebody uses it",
        "2030-01-01T02:30:00Z idle: last use 150 min ago: alice: a terminal on node-0: collected "
        "2 run(s); released at the next look unless somebody uses it",
        "2030-01-01T02:31:00Z idle: last use 151 min ago: alice: a terminal on node-0: collected "
        "2 run(s); released 3 node(s); kept volume shared",
    ]


def test_to_warn_is_all_where_nothing_more_is_wanted(world, unused):
    unused.policy((IDLE % "false").replace("then: release", "then: warn"))
    world.looks(10, every=HOUR)
    assert (unused.downs, len(unused.told)) == ([], 1)
    assert "if nobody needs it, release it" in unused.told[0][1]
    assert world.events[-1].outcome.endswith("; the hook failed (1): no output")


def test_any_use_takes_the_warning_back(world, unused):
    one = world.watch()
    world.looks(140, of=one)
    unused.use_it()
    world.looks(100, of=one)
    assert [what for what, _ in unused.told] == ["warn", "back"]
    assert unused.hook.read_text() == "lab warn\nlab back\n"
    assert "bob: a notebook on node-1" in world.events[-1].why
    assert unused.downs == []


def test_a_clock_of_the_controller_that_jumps_ends_no_warning(world, unused):
    world.looks(125)
    world.now += 10 * HOUR
    unused.began += 10 * HOUR
    world.looks(10)
    assert unused.downs == []
    world.looks(30)
    assert unused.downs == [True]


def test_a_warning_that_did_not_reach_everybody_is_none(world, unused):
    unused.fails = GpubedError("node-1 does not answer")
    world.looks(200)
    assert (unused.told, unused.downs, world.watch().journal.memory.warned) == ([], [], None)
    unused.fails = None
    world.looks(32)
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


def test_a_persons_down_that_was_interrupted_is_not_finished(world, unused):
    """Results were not saved, and the watch took it for a release of its own that they were of."""

    def fail():
        raise GpubedError("checkpoints/c1/x.pt: it is larger than what is free", "free space")

    unused.saving = fail
    world.looks(155)
    mark(world.cluster, removing="")  # as `gpubed down lab` does, which Ctrl-C ends
    assert set(world.looks(60)) <= {"well", "amiss"}
    assert unused.downs == []
    assert UNFINISHED not in [event.why for event in world.events]


@pytest.fixture
def half_way(world, unused):
    """A function that lets a `down` end half-way: one node is gone, and others do not answer."""

    def half_way(*ends, silent="all"):
        def end(how):
            world.states, unused.silent = {"node-1": "missing"}, silent
            world.rest = {"all_silent": True} if silent == "all" else {}
            if isinstance(how, Exception):
                raise how
            unused.forget_state()
            return how

        unused.breaks = [partial(end, how) for how in ends]

    return half_way


@pytest.mark.parametrize("silent", ["some", "all"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (GpubedError("the API fails", "see to it"), "the API fails (see to it)"),
        (
            Removal(["Node node-1"], [], ["Node node-0"], []),
            "not all of lab was removed: Node node-0 (gpubed down lab)",
        ),
    ],
)
def test_a_release_that_ends_half_way_is_gone_on_with(world, unused, half_way, how, said, silent):
    """Also by another watch; nothing of it is repaired, and nobody is told that it stays."""
    half_way(how, how, how, silent=silent)
    assert world.looks(152)[-1] == "amiss"
    looked = [world.looks(1)[0] for _ in range(6)]
    assert looked == ["amiss", "amiss", "amiss", "gone", "gone", "gone"]
    assert (unused.downs, world.repairs, unused.saved) == ([True] * 4, [], 2)
    assert [what for what, _ in unused.told] == ["warn"]
    assert unused.hook.read_text() == "lab warn\nlab released\n"
    assert [(event.event, event.why, event.outcome) for event in world.events[2:6]] == [
        ("idle", said, "tried again at the next look"),
        ("idle", UNFINISHED, f"failed: {said}; not again for 1 min"),
        ("idle", UNFINISHED, f"failed: {said}; not again for 2 min"),
        ("idle", UNFINISHED, "released 3 node(s); kept volume shared"),
    ]


def test_who_works_on_what_a_release_left_keeps_it(world, unused, half_way):
    """Half a cluster is for a person, who is told once; its idle time begins anew."""
    half_way(GpubedError("the API fails"), silent="some")
    world.looks(152)
    unused.use_it("bob: a notebook on node-0")
    world.looks(400)
    assert len(unused.downs) == 1
    assert world.kinds == ["idle", "idle", "idle", "person"]
    assert world.events[-1].why == f"{UNFINISHED}: there is use since: bob: a notebook on node-0"
    assert world.events[-1].outcome == "gpubed down lab; to have it back: gpubed up lab"
    assert [what for what, _ in unused.told] == ["warn"]


@pytest.mark.parametrize("time", [1, 2])
def test_who_comes_while_results_are_saved_keeps_it(world, unused, time):
    unused.saving = lambda: unused.use_it() if unused.saved == time else None
    world.looks(155)
    assert (unused.saved, unused.downs) == (time, [])
    assert [what for what, _ in unused.told] == ["warn", "back"]
    said = ("released at the next look unless", "not released: bob: a notebook on node-1")
    assert said[time - 1] in world.events[time].outcome


def test_results_that_cannot_be_saved_keep_it(world, unused):
    def fail():
        raise GpubedError("the disk is full", "free space")

    unused.saving = fail
    world.looks(160)
    assert unused.downs == []
    assert world.kinds == ["idle", "idle"], "told once"
    assert world.events[-1].why == "the disk is full (free space)"
