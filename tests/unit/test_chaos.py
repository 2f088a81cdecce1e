"""`gpubed chaos`: what is chosen, refused, undone and checked.

What breaks nodes, what looks at them and what repairs them are STAND-INs.
"""

import json
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.chaos import play
from gpubed.chaos.scenario import Held, Unfit, named, scenarios
from gpubed.cluster import status, up
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.testbeds import broken, registry
from gpubed.testbeds.breaker import Breaker, Harm
from support.bound import kind
from support.damaged import Shell, checkpoints
from support.known import mark
from support.samples import granted_cluster

__all__ = ["checkpoints"]

NODES = ("node-0", "node-1", "node-2")
BARE = "version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\nconfigure: false\n"
REPAIRED = {"kill-node", "remove-node", "stop-sshd", "cut-control", "cut-experiment"}


class World(Breaker):
    """A cluster, what breaks it, and what is seen of it.

    Attributes:
        states: How nodes are that are not ready.
        done: What was done and undone, in this order.
        fails: What breaking raises.
        blind: Whether a status sees nothing.
        costs: What `up` asks to approve.
    """

    def __init__(self):
        self.states, self.done = {}, []
        self.fails, self.blind, self.costs, self.clean = None, False, (), True

    def _harm(self, node, state, undo=True):
        def do():
            self.done.append(f"{state} {node.name}")
            self.states[node.name] = state
            if self.fails:
                raise self.fails

        def back():
            self.done.append(f"undo {node.name}")
            self.states.pop(node.name, None)

        return Harm(do, back if undo else None, f"docker mend {node.name}")

    def killed(self, node):
        return self._harm(node, "stopped")

    def removed(self, node):
        return self._harm(node, "missing", undo=False)

    def frozen(self, node):
        return self._harm(node, "paused")

    def cut(self, node, purpose):
        return self._harm(node, "cut")

    def scripted(self, node, do, undo, *, mounts=False):
        return self._harm(node, "full" if mounts else "unreachable")

    def status(self, *_):
        states = {} if self.blind else self.states
        rows = [{"name": n, "state": states.get(n, "ready"), "reason": ""} for n in NODES]
        return {"state": "degraded" if states else "ready", "nodes": rows, "stopped": []}

    def up(self, _cluster, _engine, *, approve):
        if self.costs:
            approve(self.costs)
        self.done.append("up")
        self.states.clear()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    paths = granted_cluster(tmp_path)
    paths.spec.write_text(BARE)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return paths


@pytest.fixture
def world(cluster, monkeypatch):
    made = World()

    @contextmanager
    def marker(_):
        yield lambda: True

    monkeypatch.setattr(kind("local"), "breaker", lambda _: made)
    monkeypatch.setattr(status, "status", made.status)
    monkeypatch.setattr(up, "up", made.up)
    monkeypatch.setattr(play, "_marker", marker)
    monkeypatch.setattr(play, "_SETTLES_S", 0.0)
    monkeypatch.setattr(
        play.Play, "_audited", lambda _: Held("`gpubed audit` finds nothing amiss", made.clean)
    )
    return made


@pytest.fixture
def chaos(world):
    """A function that calls the verb; nobody is there to answer."""

    def call(*words, yes=True):
        more = ["-y", "--for", "0s"] if yes else []
        return CliRunner().invoke(
            cli.build("chaos"), ["chaos", "lab", *words, *more], standalone_mode=False
        )

    return call


def refusal(done, error=UsageError):
    assert isinstance(done.exception, error), done.output
    return done.exception.message


def test_scenarios_list_themselves_and_promise(chaos):
    told = json.loads(chaos("--list", "--json").stdout)
    assert told["schema"] == "gpubed/chaos/1"
    names = [one["name"] for one in told["scenarios"]]
    assert names == list(scenarios()) == sorted(names)
    assert {"kill-node", "freeze-node", "lossy-link", "corrupt-checkpoint", "gpu-fault"} <= {*names}
    assert all(one["does"] and one["holds"] for one in told["scenarios"])
    assert "freeze-node: " in chaos("--list").stdout


def test_what_up_repairs_is_not_ended_by_ourselves():
    assert {name for name, one in scenarios().items() if not one.by_itself} - {
        "stop-service"
    } == REPAIRED


def test_an_unknown_scenario_names_the_nearest(chaos):
    done = chaos("freze-node")
    assert "no scenario 'freze-node'" in refusal(done)
    assert "freeze-node" in done.exception.hint


@pytest.mark.parametrize("words", [(), ("kill-node", "--all"), ("--all", "--list")])
def test_one_of_a_scenario_all_and_list(chaos, words):
    assert "one of them" in refusal(chaos(*words))


@pytest.mark.parametrize("text", ["soon", "-1s"])
def test_a_time_is_one(cluster, text):
    done = CliRunner().invoke(
        cli.build("chaos"), ["chaos", "lab", "kill-node", f"--for={text}"], standalone_mode=False
    )
    assert "--for" in refusal(done)
    assert "must look like 10 s" in refusal(done)


def test_checkpoints_are_named_to_who_damages_them(chaos, world):
    said = refusal(chaos("kill-node", "--checkpoint", "resnet"))
    assert said == "kill-node damages no checkpoints: --checkpoint means nothing to it"


def test_a_node_that_is_not_there_is_a_wrong_argument(chaos, world):
    assert "has no node 'nope'" in refusal(chaos("kill-node", "--on", "nope"))


def test_all_is_never_left_broken(chaos):
    assert "one thing" in refusal(chaos("--all", "--only-break"))


@pytest.mark.parametrize("name", ["static", "openstack", "virtualwall", "gpulab"])
def test_other_testbeds_refuse_by_name(cluster, name):
    with pytest.raises(UsageError, match=f"no nodes of backend {name}"):
        registry.bound(name, cluster).breaker()


def test_virtual_machines_are_refused(cluster, monkeypatch):
    machines = BARE.replace("local}", "local, runtime: vm}")
    monkeypatch.setattr("gpubed.testbeds.reach.Reach._last", cluster.spec.parent / "was.yml")
    (cluster.spec.parent / "was.yml").write_text(machines)
    with pytest.raises(UsageError, match="virtual machines"):
        registry.bound("local", cluster).breaker()


def test_nothing_is_broken_unasked(chaos, world):
    assert "nothing was broken" in refusal(chaos("kill-node", yes=False))
    assert world.done == []


def test_what_is_broken_already_is_refused(chaos, world):
    world.states["node-2"] = "missing"
    assert "degraded" in refusal(chaos("kill-node"), GpubedError)
    assert world.done == []


def test_a_link_that_was_left_slow_is_put_right_first(chaos, world, cluster):
    mark(cluster, reshaped=True)
    assert "another rate" in refusal(chaos("kill-node"), GpubedError)
    assert world.done == []


def test_a_run_that_changes_the_cluster_is_not_disturbed(chaos, world, cluster):
    with runlock.locked(cluster.state / "lock", "up"):
        refusal(chaos("kill-node"), Locked)
    assert world.done == []


def test_beside_a_watch_it_only_breaks(chaos, world, cluster):
    with runlock.locked(cluster.watching, "watch"):
        done = chaos("kill-node")
        assert "gpubed watch" in refusal(done, Locked)
        assert "--only-break" in done.exception.hint
        assert chaos("kill-node", "--only-break", "--on", "node-1").return_value == 0
    assert world.done == ["stopped node-1"]


def test_a_killed_node_is_repaired_by_up(chaos, world):
    told = json.loads(chaos("kill-node", "--on", "node-1", "--seed", "4", "--json").stdout)
    assert world.done == ["stopped node-1", "up"]
    assert (told["scenario"], told["node"], told["seed"]) == ("kill-node", "node-1", 4)
    assert told["ok"] is True
    assert {*told} == {"schema", "scenario", "node", "seed", "seconds", "held", "ok"}
    assert [one["ok"] for one in told["held"]] == [True] * 5


def test_a_frozen_node_goes_on_by_itself(chaos, world):
    done = chaos("freeze-node", "--on", "node-2")
    assert done.return_value == 0
    assert world.done == ["paused node-2", "undo node-2"]
    assert "docker mend node-2" in done.output


def test_what_a_status_does_not_see_did_not_hold(chaos, world):
    world.blind = True
    done = chaos("kill-node", "--json")
    [seen, *others] = json.loads(done.stdout)["held"]
    assert done.return_value == 1
    assert (seen["ok"], seen["why"]) == (False, "it says ready")
    assert all(one["ok"] for one in others)


def test_a_repair_may_cost_what_was_broken_and_no_more(chaos, world):
    world.costs = ("replace Node node-1 (gone): what is on its own disks is lost",)
    assert chaos("remove-node", "--on", "node-1").return_value == 0
    world.costs = ("replace Volume shared (size): a new one takes its place",)
    done = chaos("remove-node", "--on", "node-1")
    assert done.return_value == 1
    assert "Volume shared" in done.output


@pytest.mark.parametrize("name", ["freeze-node", "kill-node"])
def test_who_interrupts_finds_it_undone(chaos, world, monkeypatch, name):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    chaos(name, "--on", "node-0")
    assert world.done[1:] == ["undo node-0"]
    assert world.states == {}


@pytest.mark.parametrize("words", [(), ("--only-break",)])
@pytest.mark.parametrize("error", [KeyboardInterrupt, GpubedError("no")])
def test_what_was_begun_and_failed_is_undone(chaos, world, words, error):
    world.fails = error
    chaos("freeze-node", "--on", "node-0", *words)
    assert world.done == ["paused node-0", "undo node-0"]


def test_only_break_leaves_it_and_says_how_it_is_undone(chaos, world):
    told = json.loads(chaos("cut-control", "--only-break", "--on", "node-1", "--json").stdout)
    assert (told["node"], told["by_hand"]) == ("node-1", "docker mend node-1")
    assert world.done == ["cut node-1"]


def test_a_seed_draws_the_same_node_whatever_is_played_before(cluster, world):
    ground = play.ground(cluster)
    drawn = [
        [play.cast(named(name), ground, seed).node.name for name in REPAIRED]
        for seed in (5, 5, 6, 7, 8)
    ]
    assert drawn[0] == drawn[1]
    assert any(other != drawn[0] for other in drawn[2:])


def test_a_seed_draws_the_order():
    assert play.order("abcdef", 3) == play.order("fedcba", 3)
    assert sorted(play.order("abcdef", 3)) == list("abcdef")
    assert len({tuple(play.order("abcdef", seed)) for seed in range(9)}) > 1


def test_all_plays_what_fits_and_says_why_not(chaos, world, monkeypatch):
    known = {n: scenarios()[n] for n in ("kill-node", "freeze-node", "stop-service", "gpu-fault")}
    monkeypatch.setattr("gpubed.cli.commands.chaos.scenarios", lambda: known)
    done = chaos("--all", "--seed", "1", "--json")
    told = json.loads(done.stdout)
    assert {one["scenario"] for one in told["played"]} == {"kill-node", "freeze-node"}
    assert {one["scenario"] for one in told["skipped"]} == {"stop-service", "gpu-fault"}
    assert all(one["why"] for one in told["skipped"])
    assert (told["ok"], told["seed"], done.return_value) == (True, 1, 0)


def test_all_ends_where_a_cluster_stays_broken(chaos, world, monkeypatch):
    known = {name: scenarios()[name] for name in ("kill-node", "remove-node")}
    monkeypatch.setattr("gpubed.cli.commands.chaos.scenarios", lambda: known)
    monkeypatch.setattr(up, "up", lambda *_, **__: None)
    done = chaos("--all", "--json")
    told = json.loads(done.stdout)
    assert done.return_value == 1
    assert [len(told["played"]), len(told["skipped"])] == [1, 1]
    assert "degraded" in told["skipped"][0]["why"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stop-service", "not configured"),
        ("gpu-fault", "pretends to have GPUs"),
        ("kill-rank", "no run has ranks"),
        ("corrupt-checkpoint", "--checkpoint FOLDER"),
    ],
)
def test_what_does_not_fit_says_why(cluster, world, name, why):
    with pytest.raises(Unfit, match=why):
        play.cast(named(name), play.ground(cluster), 1)


@pytest.mark.parametrize("folder", ["../data", "/etc", ".", ".."])
def test_checkpoints_are_below_their_folder(cluster, world, folder):
    with pytest.raises(Unfit, match="no folder's name"):
        play.cast(named("corrupt-checkpoint"), play.ground(cluster, folder), 1)


def test_a_node_that_does_not_fit_is_refused(cluster, world):
    cluster.spec.write_text(BARE.replace("configure: false\n", ""))
    with pytest.raises(Unfit, match="cannot be played on node-1"):
        play.cast(named("stop-service"), play.ground(cluster), 1, "node-1")


def test_an_audit_that_is_not_clean_does_not_hold(chaos, world):
    world.clean = False
    assert chaos("kill-node").return_value == 1


@pytest.fixture
def killed(checkpoints, cluster, monkeypatch):
    """A cluster on which a chaos was killed before it could undo what it did."""
    monkeypatch.setattr(kind("local"), "breaker", lambda _: Shell())
    harm, granted = checkpoints.harm(), play.ground(cluster).cluster.allocation
    broken.note(cluster, granted, "corrupt-checkpoint", "node-0", harm)
    harm.do()
    return SimpleNamespace(cluster=cluster, granted=granted, checkpoints=checkpoints)


@pytest.mark.process
def test_what_a_killed_chaos_did_is_undone_by_who_comes_next(killed):
    assert broken.left(killed.cluster).scenario == "corrupt-checkpoint"
    assert broken.undo(killed.cluster, killed.granted).node == "node-0"
    assert (killed.checkpoints.folder / "step").read_bytes() == killed.checkpoints.content
    assert broken.undo(killed.cluster, killed.granted) is None


@pytest.mark.process
def test_but_not_while_it_is_at_work(killed):
    with runlock.locked(killed.cluster.watching, "chaos"):
        assert broken.undo(killed.cluster, killed.granted) is None
    assert broken.left(killed.cluster)


@pytest.mark.process
def test_another_cluster_by_that_name_has_nothing_of_it(killed):
    other = killed.granted.model_copy(update={"uuid": "other"})
    broken.undo(killed.cluster, other)
    assert (killed.checkpoints.folder / "step").read_bytes() != killed.checkpoints.content
    assert broken.left(killed.cluster) is None


@pytest.mark.process
def test_what_cannot_be_undone_now_is_named_with_its_command(killed, monkeypatch):
    def no_node(*_, **__):
        raise GpubedError("cannot change node-0")

    monkeypatch.setattr(subprocess, "run", no_node)
    with pytest.raises(GpubedError, match="corrupt-checkpoint` on node-0 has not") as refused:
        broken.undo(killed.cluster, killed.granted)
    assert refused.value.hint == "by hand"
    assert broken.left(killed.cluster)


@pytest.mark.process
def test_up_undoes_it_and_status_names_that(killed, monkeypatch):
    said = []
    monkeypatch.setattr("gpubed.core.progress.emit", lambda _, message: said.append(message))
    status._tell_of_chaos(killed.cluster)
    up._undo_chaos(killed.cluster, last=False)
    status._tell_of_chaos(killed.cluster)
    assert said == [
        "`gpubed chaos corrupt-checkpoint` on node-0 has not been undone: gpubed up lab does that",
        "undone: what `gpubed chaos corrupt-checkpoint` did to node-0",
    ]


@pytest.mark.process
def test_a_note_that_cannot_be_read_is_named_by_up(killed):
    killed.cluster.broken.unlink()
    killed.cluster.broken.mkdir()
    status._tell_of_chaos(killed.cluster)
    with pytest.raises(GpubedError, match=r"broken\.json cannot be read: it is not a file") as no:
        up._undo_chaos(killed.cluster, last=True)
    assert no.value.hint.startswith("rm -r ")


@pytest.mark.process
def test_nothing_else_is_broken_before_that(killed, world, chaos):
    done = chaos("kill-node")
    assert "was killed, or left what it broke" in refusal(done, GpubedError)
    assert done.exception.hint == "gpubed up lab"


def test_it_is_noted_until_it_is_undone(chaos, world, cluster, monkeypatch):
    seen = []
    monkeypatch.setattr(
        world, "scripted", lambda node, *_, **__: Harm(*noting(seen, cluster), "by hand", "true")
    )
    world.states = {}
    assert chaos("fill-disk", "--only-break", "--on", "node-1").return_value == 0
    assert broken.left(cluster).node == "node-1"
    broken.forget(cluster)
    chaos("fill-disk", "--on", "node-1")
    assert seen == [True, True, True]
    assert broken.left(cluster) is None


def noting(seen, cluster):
    def look():
        seen.append(cluster.broken.exists())

    return look, look


def test_what_up_repairs_anyway_is_not_noted(chaos, world, cluster):
    chaos("stop-sshd", "--only-break", "--on", "node-1")
    assert not cluster.broken.exists()
