"""Every verb that prints data prints one JSON document on request."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from gpubed import cli
from gpubed.access import services
from support.samples import granted_cluster

HANDS_OVER = {"ssh"}  # another program speaks in its place


def verbs(group, *words):
    for name, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from verbs(inner, *words, name)
        else:
            yield " ".join([*words, name]), inner


@pytest.mark.parametrize(
    ("name", "verb"), list(verbs(typer.main.get_group(cli.build()))), ids=lambda v: str(v)[:16]
)
def test_a_verb_has_json(name, verb):
    options = {option for param in verb.params for option in param.opts}
    assert ("--json" in options) == (name not in HANDS_OVER)


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A function that returns what a verb prints with `--json`, and nothing besides."""
    granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))

    def call(*words):
        done = CliRunner().invoke(
            cli.build(), [*words, "--json"], standalone_mode=False, catch_exceptions=False
        )
        return json.loads(done.stdout)

    return call


def test_open_gives_the_whole_address_and_opens_nothing(document, monkeypatch):
    monkeypatch.setattr(services, "token_url", lambda *_: "https://10.0.0.1:8888/lab?token=x")
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("a browser was opened"))
    found = document("open", "lab")
    assert found == {
        "schema": "gpubed/open/1",
        "url": "https://10.0.0.1:8888/lab?token=x",
        "tunnel": None,
    }


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["verify", "lbb", "--json"], 2, "there is no cluster 'lbb'"),
        (["check", "lab/../lab", "--json"], 2, "there is no cluster 'lab/../lab'"),
        (["run", "lab", "digits", "--epochs", "5", "--json"], 2, "No such option: --epochs"),
        (["status", "x" * 5000, "--json"], 2, "there is no cluster"),
        (["run", "lab", "digits", "--on", "", "--json"], 2, "--on names no node"),
    ],
)
def test_what_is_refused_is_a_document_too(tmp_path, words, code, message):
    granted_cluster(tmp_path)
    done = subprocess.run(
        [Path(sys.executable).with_name("gpubed"), *words],
        env={**os.environ, "GPUBED_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (told["schema"], told["exit_code"], done.returncode) == ("gpubed/error/1", code, code)
    assert message in told["message"]
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".gpubed/lab/runs").exists()


@pytest.mark.process
@pytest.mark.parametrize("words", ["check lab --json"])
def test_a_full_stdout_is_named(tmp_path, words):
    granted_cluster(tmp_path)
    program = Path(sys.executable).with_name("gpubed")
    done = subprocess.run(
        f"{program} {words} >/dev/full",
        shell=True,
        env={**os.environ, "GPUBED_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "error: stdout cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
