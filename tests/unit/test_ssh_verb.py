"""What `gpubed ssh` takes for a node, and what for a command; ssh itself is a STAND-IN."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.commands import ssh as verb
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process


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
    monkeypatch.setattr(verb, "run_interactive", lambda words: given.append(words[3:]) or 0)

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
        (["lab", "--", "ls", "-l"], ["node-0", "ls", "-l"]),
        (["lab", "head", "--", "nproc"], ["node-0", "nproc"]),
        (["lab", "node-1", "--", "sh", "--", "-c"], ["node-1", "sh", "--", "-c"]),
        (["lab", "node-1", "-L", "1:2:3"], ["node-1", "-L", "1:2:3"]),
    ],
    ids=str,
)
def test_after_two_dashes_comes_the_command(called, words, told):
    assert called(*words) == told


@pytest.fixture
def ssh(tmp_path, called):
    """A function that starts `gpubed ssh` where `ssh` is a script of ours: a STAND-IN."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()

    def start(script):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        way = f"{program.parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            [Path(sys.executable).with_name("gpubed"), "ssh", "lab", "node-1", "--", "a b"],
            env={**os.environ, "PATH": way, "GPUBED_ROOT": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_it_has_our_streams_and_its_exit_code_is_ours(ssh):
    with ssh('read said; echo "$4: $said"; exit 7') as done:
        out, err = done.communicate("typed\n", 60)
    assert (done.returncode, out, err) == (7, "a b: typed\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_what_ends_us_ends_it(ssh, number):
    with ssh("echo $$; exec sleep 60") as done:
        child = int(done.stdout.readline())
        done.send_signal(number)
        assert done.wait(30) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_one_that_stands_still_gives_the_shell_its_terminal(ssh):
    """As `~^Z` does: a shell waits for us, and not for it."""
    with ssh("echo $$; kill -STOP $$; echo on") as done:
        done.stdout.readline()
        assert os.WIFSTOPPED(os.waitpid(done.pid, os.WUNTRACED)[1])
        done.send_signal(signal.SIGCONT)
        assert done.communicate(timeout=30)[0] == "on\n"
    assert done.returncode == 0
