"""`gpubed report` of a cluster whose nodes do not answer."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.nodes.ssh import SSH
from support.samples import granted_cluster


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A cluster that is up, and does not answer."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(SSH, "answers", lambda *_: False)
    return granted_cluster(tmp_path)


def call(*words):
    return CliRunner().invoke(
        cli.build(), ["report", "lab", *words], standalone_mode=False, catch_exceptions=False
    )
