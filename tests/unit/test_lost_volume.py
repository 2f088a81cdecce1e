"""A volume that somebody else removed is not made anew, empty, without a word.

The state is a STAND-IN, and so is what the testbed has; the verbs are the real ones.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import audit, condition, damage, status, up
from gpubed.cluster.condition import Condition
from gpubed.core import secret
from gpubed.core.paths import Project
from gpubed.engines import stack as stacks
from gpubed.engines.embedded import Result
from gpubed.testbeds import registry
from support.bound import kind
from support.samples import sample_allocation, sample_plan

CALLED = "gpubed-lab-6f0c0000-shared"
GONE = f"the volume {CALLED} is gone; an empty one is made in its place"


def resource(kind, name, id_, result):
    """A dynamic resource as a state has it."""
    outputs = {"backend": "local", "kind": kind, "result": result}
    type_ = f"pulumi-python:dynamic/gpubed:{kind.title()}"
    return {"type": type_, "urn": f"urn:{name}::{name}", "id": id_, "outputs": outputs}


STATE = [
    resource("volume", "shared", CALLED, {"name": CALLED}),
    resource("node", "node-0", "c0", {}),
]


class AtItsEnd(Exception):
    """The run has done all that these tests are about."""


def at_its_end(*_, **__):
    raise AtItsEnd


@pytest.fixture
def refreshed():
    """The runs that have brought the state up to what is there."""
    return []


@pytest.fixture
def call(tmp_path, monkeypatch, refreshed):
    """A function that runs a verb on a cluster whose node and volume have vanished."""
    paths, local = Project(tmp_path).cluster("lab"), kind("local")
    for folder in (paths.spec.parent, paths.secrets):
        folder.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n")
    wanted = sample_plan(nodes=[{"count": 1}])
    paths.allocation.write_text(sample_allocation(wanted).model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(local, "existing", lambda *_: [])
    monkeypatch.setattr(local, "fits", lambda *_: [])
    monkeypatch.setattr(type(registry.backend("local")), "warnings", lambda *_: [])
    there = {"volume": None, "node": None}

    class Driver:
        def __init__(self, kind):
            self.kind = kind

        def read(self, *_):
            return there[self.kind]

    monkeypatch.setattr(local, "driver", lambda _, kind: Driver(kind))
    monkeypatch.setattr(secret, "public_key", lambda _: "ssh-ed25519 KEY")
    monkeypatch.setattr(condition, "look", lambda *_, **__: Condition({"node-0": "missing"}))
    stack = stacks.Stack
    monkeypatch.setattr(stack, "export", lambda _: {"deployment": {"resources": STATE}})
    monkeypatch.setattr(stack, "mend", lambda _: None)
    monkeypatch.setattr(stack, "outputs", lambda _: {"allocation": {}})
    monkeypatch.setattr(stack, "preview", lambda *_, **__: Result({}, (), {}, 0.0))
    monkeypatch.setattr(stack, "up", lambda *_: Result({}, (), {}, 0.0))
    monkeypatch.setattr(stack, "refresh", lambda *_: refreshed.append("refreshed"))
    monkeypatch.setattr(up, "_require_whole", lambda *_, **__: None)
    monkeypatch.setattr(status, "status", at_its_end)

    def run(*words, **what):
        there.update(what)
        return CliRunner().invoke(
            cli.build(), [*words, "--engine", "embedded"], standalone_mode=False
        )

    return run


def test_up_asks_before_the_state_forgets_a_volume_that_is_gone(call, refreshed):
    refused = call("up", "lab").exception
    assert refused.exit_code == 2
    assert refused.message == f"not confirmed, so nothing was changed: {GONE}"
    assert refused.hint == "gpubed up lab -y"
    assert refreshed == [], "the next one must know of it, too"


def test_up_goes_on_when_that_is_approved(call, refreshed):
    done = call("up", "lab", "-y")
    assert isinstance(done.exception, AtItsEnd)
    assert GONE in done.stderr
    assert refreshed == ["refreshed"]


def test_a_volume_that_is_there_is_no_matter(call, refreshed):
    done = call("up", "lab", volume={"name": CALLED})
    assert isinstance(done.exception, AtItsEnd)
    assert "is gone" not in done.output
    assert refreshed == ["refreshed"]


def test_a_plan_says_it_first(call):
    found = json.loads(call("plan", "lab", "--json").stdout)
    assert found["lost"] == [GONE]
    assert GONE in call("plan", "lab").stderr


def test_what_a_plugin_made_is_looked_for_among_all_that_there_is(monkeypatch):
    """As on OpenStack, where no driver of ours knows it."""
    type_ = "openstack:blockstorage/volume:Volume"
    attachment = "openstack:compute/volumeAttach:VolumeAttach"
    monkeypatch.setattr(kind("openstack"), "existing", lambda *_: [])
    resources = [
        {"type": kind, "urn": "u::data", "id": kind, "outputs": {"name": "lab-data"}}
        for kind in (type_, attachment)
    ]

    class Stack:
        paths = Project(Path("/nowhere")).cluster("lab")

        def export(self):
            return {"deployment": {"resources": resources}}

    stack = Stack()
    missing = audit.missing_data(stack, audit.testbeds(stack))
    assert [volume.called for volume in missing] == ["lab-data"]


def test_what_is_not_approved_leaves_what_is_known_of_the_cluster(call, tmp_path):
    """Its last verification, and what counts as configured."""
    known = Project(tmp_path).cluster("lab").verification
    known.write_text("{}")
    assert call("up", "lab").exception.exit_code == 2
    assert known.exists()
    call("up", "lab", "-y")
    assert not known.exists()


def test_damage_is_looked_for_where_the_cluster_is(call, tmp_path, monkeypatch):
    """And not on the testbed that the specification names by now, which has none of its nodes."""
    asked = []

    def look(testbed, cluster, **_options):
        asked.append((cluster.allocation.backend, testbed.backend.name))
        return Condition({"node-0": "ready"})

    monkeypatch.setattr(condition, "look", look)
    paths = Project(tmp_path).cluster("lab")
    wanted = sample_plan(
        nodes=[{"count": 1}], backend={"type": "static", "user": "me", "hosts": {}}
    )
    assert damage.damaged(damage.look(paths, wanted)) is None
    assert asked == [("local", "local")]
