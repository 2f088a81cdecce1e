"""A volume that somebody else removed is not made anew, empty, without a word.

The state is a STAND-IN, and so is what the testbed has; the verbs are the real ones.
"""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import probe, status
from gpubed.cluster.probe import Condition
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
    monkeypatch.setattr(probe, "look", lambda *_, **__: Condition({"node-0": "missing"}))
    stack = stacks.Stack
    monkeypatch.setattr(stack, "export", lambda _: {"deployment": {"resources": STATE}})
    monkeypatch.setattr(stack, "mend", lambda _: None)
    monkeypatch.setattr(stack, "outputs", lambda _: {"allocation": {}})
    monkeypatch.setattr(stack, "preview", lambda *_, **__: Result({}, (), {}, 0.0))
    monkeypatch.setattr(stack, "up", lambda *_: Result({}, (), {}, 0.0))
    monkeypatch.setattr(stack, "refresh", lambda *_: refreshed.append("refreshed"))
    monkeypatch.setattr(probe, "require", lambda *_: None)
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


def test_a_plan_says_it_first(call):
    found = json.loads(call("plan", "lab", "--json").stdout)
    assert found["lost"] == [GONE]
    assert GONE in call("plan", "lab").stderr
