"""Own hosts that nobody could look at after a state was lost: they may be nodes still.

Sessions with hosts are STAND-INS; the stack is a real one of the embedded engine.
"""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.static.testbed import StaticTestbed
from gpubed.core import record
from gpubed.core.paths import Project
from gpubed.nodes.ssh import Unreachable

UUID = "6f0c0000-0000-4000-8000-000000000000"
SPEC = """
version: 1
backend:
  type: static
  user: me
  hosts: {node: [{address: 192.0.2.7}, {address: 192.0.2.8}, {address: 192.0.2.9}]}
networks: {control: {subnet: 192.0.2.0/24}}
nodes: [{count: 2}]
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A cluster whose state is lost, of hosts that answer or are silent, by name."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text(SPEC)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    record.keep_uuid(paths, UUID)
    paths.private_key.parent.mkdir()
    paths.private_key.write_text("key")
    silent = {"node-1"}

    def on(_self, _config, _host, name, _do):
        if name in silent:
            raise Unreachable(f"{name} does not answer SSH")
        return SimpleNamespace(owner={})

    monkeypatch.setattr(StaticTestbed, "_on", on)
    return SimpleNamespace(paths=paths, silent=silent)


def call(*words):
    return CliRunner().invoke(cli.build(), [*words, "--engine", "embedded"], standalone_mode=False)


def test_down_does_not_end_while_one_was_not_looked_at(lab):
    done = call("down", "lab", "-y")
    assert done.return_value == 1
    assert "may be a node still: node-1 (192.0.2.8): node-1 does not answer SSH" in done.output
    assert "nothing to remove" not in done.output
    assert "if it never will: gpubed down lab --without node-1" in done.output
    assert record.uuid(lab.paths) == UUID
    assert lab.paths.private_key.exists()


def test_it_ends_when_all_have_been(lab):
    call("down", "lab", "-y")
    lab.silent.clear()
    assert call("down", "lab", "-y").return_value == 0
    assert not lab.paths.private_key.exists()
