"""Somebody deleted .gpubed while the cluster ran: every verb leads to what finds it again.

Nothing exists here: what the testbed has is a STAND-IN.
"""

import pytest
from typer.testing import CliRunner

from gpubed import cli, registry
from gpubed.backends.base import Existing
from gpubed.errors import GpubedError
from gpubed.paths import Project

UUID = "6f0c0000-0000-4000-8000-000000000000"


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs a verb where a cluster exists that no state knows."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n")
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    local = type(registry.backend("local"))
    there = [Existing("node", "node-0", "c0", UUID), Existing("network", "control", "n0", UUID)]
    monkeypatch.setattr(local, "existing", lambda *_: there)
    monkeypatch.setattr(local, "doctor", lambda *_: [])

    def run(*words):
        return CliRunner().invoke(cli.build(), [*words], standalone_mode=False)

    return run


def test_down_does_not_say_that_there_was_nothing(call):
    done = call("down", "lab", "-y", "--engine", "embedded")
    assert done.return_value == 1
    assert f"another lab was left alone (uuid {UUID}): node node-0, network control" in done.stderr
    assert f"gpubed audit lab --adopt --uuid {UUID}" in done.stderr
    assert f"gpubed audit lab --remove --uuid {UUID}" in done.stderr
    assert "nothing to remove" not in done.output


def test_up_asks_before_it_makes_a_second_cluster(call):
    done = call("up", "lab", "--engine", "embedded")
    assert isinstance(done.exception, GpubedError)
    assert done.exception.exit_code == 2
    assert f"there is another lab (uuid {UUID})" in done.exception.message
    assert "gpubed audit lab tells how to take it over" in done.exception.message


def test_audit_gives_whole_commands(call):
    done = call("audit", "lab", "--engine", "embedded")
    assert f"gpubed audit lab --adopt --uuid {UUID}" in done.stdout
    assert f"gpubed audit lab --remove --uuid {UUID}" in done.stdout


@pytest.mark.parametrize("words", [("status", "lab"), ("run", "lab", "digits"), ("ssh", "lab")])
def test_verbs_that_need_a_cluster_name_the_one_that_finds_it(call, words):
    done = call(*words)
    assert done.exception.message == "cluster lab is not up"
    assert done.exception.hint == "gpubed up lab; if it was up already: gpubed audit lab"
