"""`gpubed watch`, look after look: what it remembers, what ends it, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import runlock
from gpubed.core.errors import Locked
from support.watched import world

__all__ = ["world"]


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
