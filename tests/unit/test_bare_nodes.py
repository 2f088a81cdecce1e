"""Nodes that were to stay as the testbed made them: `configure: false`."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import condition, status, up
from gpubed.core.errors import UsageError
from gpubed.engines.embedded import Result
from support.known import mark
from support.samples import granted_cluster


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A cluster on which `gpubed configure` was cut off, and of which `up` configures nothing."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = granted_cluster(tmp_path)
    paths.spec.write_text(f"{paths.spec.read_text()}configure: false\n")
    mark(paths, unfinished="roles")
    return paths


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("words", [["run", "lab", "digits"], ["bench", "lab", "smoke"]])
def test_a_job_is_refused_with_what_helps(words):
    """`up` would not go on with the configuration."""
    with pytest.raises(UsageError, match="configure: false"):
        CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)


def test_what_up_does_not_go_on_with_is_not_unfinished(bare, monkeypatch):
    well = condition.Condition({f"node-{n}": "ready" for n in range(3)})
    monkeypatch.setattr(condition, "look", lambda *_, **__: well)
    monkeypatch.setattr(status, "_unreadable", lambda *_: [])
    assert status.status(bare, "embedded")["state"] == "ready"


def test_up_is_no_remedy_for_bare_nodes_that_boot(bare, monkeypatch):
    """It ended with 0, and named itself as the remedy."""
    seen = condition.Condition({"node-0": "ready", "node-1": "unreachable", "node-2": "ready"})
    made = up.Done(Result({"create": 3}, (), {}, 1.0), seen)
    monkeypatch.setattr(up, "up", lambda *_, **__: made)
    done = CliRunner().invoke(cli.build("up"), ["up", bare.name, "--engine", "embedded"])
    assert done.exit_code == 0, done.output
    assert "not whole" not in done.output
    assert "- node-1 is unreachable: nobody waits for the boot of nodes without" in done.output
