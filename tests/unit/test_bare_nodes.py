"""Nodes that were to stay as the testbed made them: `configure: false`."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
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
