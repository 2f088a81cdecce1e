"""A cluster that is watched: clock, looks at its nodes and repairs of them are STAND-INs."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from gpubed.cluster import lease, probe, up, watch
from gpubed.cluster.probe import Condition
from gpubed.core import runlock, secret
from support.known import apply
from support.samples import granted_cluster

SPEC = "version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\nconfigure: false\n"
NAMES = ("node-0", "node-1", "node-2")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class World:
    """A cluster, a clock and what a watch meets; each `watch` is as of a new process."""

    def __init__(self, cluster, monkeypatch):
        self.cluster, self.now = cluster, datetime(2030, 1, 1, tzinfo=UTC)
        self.states, self.rest, self.unwell = {}, {}, []
        self.asks, self.fails, self.heals = (), None, True
        self.restarts, self.overdue = (), None
        self.repairs, self.events = [], []
        monkeypatch.setattr(lease, "now", lambda: self.now)
        monkeypatch.setattr(probe, "look", self.look_at_nodes)
        monkeypatch.setattr(up, "up", self.up)

    def look_at_nodes(self, *_):
        if isinstance(self.states, Exception):
            raise self.states
        nodes = dict.fromkeys(NAMES, "ready") | self.states
        return Condition(nodes, **self.rest, unwell=tuple(self.unwell))

    def up(self, cluster, _engine, *, approve, still_wanted, overdue):
        with runlock.hold(cluster.state, "up"):
            still_wanted()
            if self.asks:
                approve(self.asks)
            self.repairs.append(self.now)
            self.overdue = overdue
            if self.fails:
                raise self.fails
            if self.heals:
                self.states, self.rest = {}, {}
            return up.Done(None, restarted=self.restarts)

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
    apply(cluster, "local")
    secret.ensure_key(cluster.private_key)
    stack = cluster.project.pulumi / ".pulumi" / "stacks" / "gpubed" / "lab.json"
    stack.parent.mkdir(parents=True)
    stack.touch()
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return World(cluster, monkeypatch)
