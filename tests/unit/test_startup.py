"""`gpubed --help` and the tab key are quick: they import no verb, and nothing heavy."""

import itertools
import os
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from gpubed import cli

pytestmark = pytest.mark.process

HEAVY = "altair ansible_runner docker grpc lxml paramiko pulumi pydantic rich scipy yaml"
ASK = f"""
import sys
from gpubed import cli
sys.argv[0] = "gpubed"
try:
    cli.main()
except SystemExit:
    print("loaded:", *set({HEAVY!r}.split()) & set(sys.modules))
    print("verbs:", *(m for m in sys.modules if m.startswith("gpubed.cli.commands.")))
"""


def start(*words, **settings):
    """Run the command line in a process of its own; return what it said and what it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    said, _, loaded = done.stdout.partition("loaded:")
    return said, loaded.replace("verbs:", "").split()


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_what_concerns_no_verb_imports_none(words):
    assert start(*words)[1] == []


def test_the_list_of_verbs_is_the_same_as_that_of_the_verbs_themselves():
    whole = CliRunner().invoke(cli.build(), ["--help"], prog_name="gpubed")
    light = CliRunner().invoke(cli.listing(), ["--help"], prog_name="gpubed")
    assert sorted(light.output.splitlines()) == sorted(whole.output.splitlines())


def test_each_verb_is_listed_in_a_panel_by_a_line_that_is_whole():
    said, _ = start("--help", COLUMNS="80")
    listed, panel = {}, ""
    for line in said.split("--help", 1)[1].splitlines()[1:]:
        assert len(line) <= 80
        if line.endswith(":"):
            panel = line[:-1]
        elif panel and line:
            verb, *words = line.split()
            assert words, verb
            assert not line.endswith("..."), line
            listed.setdefault(panel, []).append(verb)
        if panel == "Care" and not line:
            break
    assert list(listed) == ["Cluster", "Work", "Experiments", "Care"]
    assert sorted(itertools.chain(*listed.values())) == list(cli.verbs())
    assert listed["Cluster"].index("init") < listed["Cluster"].index("up")


def complete(line):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return start(_GPUBED_COMPLETE="complete_bash", **words)


def test_the_tab_key_imports_no_verb_for_its_name():
    said, loaded = complete("gpubed re")
    verbs = [verb for verb in typer.main.get_group(cli.build()).commands if verb.startswith("re")]
    assert sorted(said.split()) == sorted(verbs)
    # Typer imports pydantic itself before it completes.
    assert set(loaded) <= {"pydantic"}


def test_the_tab_key_imports_the_verb_that_is_meant():
    said, loaded = complete("gpubed env --js")
    assert said.split() == ["--json"]
    assert [name for name in loaded if name.startswith("gpubed.")] == ["gpubed.cli.commands.env"]
