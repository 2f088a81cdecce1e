"""What `gpubed ssh` takes for a node, and what for a command; ssh itself is not started."""

import os

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def called(tmp_path, monkeypatch):
    """A function that runs `gpubed ssh` and returns ssh's words after its configuration."""
    paths = Project(tmp_path).cluster("lab")
    for folder in (paths.spec.parent, paths.state):
        folder.mkdir(parents=True)
    secret.ensure_key(paths.private_key)
    paths.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    given = []
    monkeypatch.setattr(os, "execvp", lambda _program, words: given.append(words[3:]))

    def run(*words):
        CliRunner().invoke(
            cli.build(), ["ssh", *words], standalone_mode=False, catch_exceptions=False
        )
        return given[-1]

    return run


def test_without_the_key_it_says_so_before_ssh_does(called):
    """And not before: in this test's project there is no specification either."""
    Project.find().cluster("lab").private_key.unlink()
    with pytest.raises(GpubedError, match="SSH key is lost"):
        called("lab", "node-1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lab"], ["node-0"]),
        (["lab", "node-1"], ["node-1"]),
        (["lab", "--", "nproc"], ["node-0", "nproc"]),
        (["lab", "--", "ls", "-l"], ["node-0", "ls", "-l"]),
        (["lab", "head", "--", "nproc"], ["node-0", "nproc"]),
        (["lab", "node-1", "--", "sh", "--", "-c"], ["node-1", "sh", "--", "-c"]),
        (["lab", "node-1", "-L", "1:2:3"], ["node-1", "-L", "1:2:3"]),
    ],
    ids=str,
)
def test_after_two_dashes_comes_the_command(called, words, told):
    assert called(*words) == told
