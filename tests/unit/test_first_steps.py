"""What a newcomer mistypes ends in words that lead on."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import doctor
from gpubed.core import yaml_lines
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.base import Finding
from support.bound import kind

SPEC = "version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with two clusters; the current folder is its root."""
    for name in ("mine", "lab"):
        spec = Project(tmp_path).cluster(name).spec
        spec.parent.mkdir(parents=True)
        spec.write_text(SPEC)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


MAKES_ONE = "gpubed init mien makes one; "


@pytest.mark.parametrize(
    ("verb", "hint"), [("status", ""), ("check", MAKES_ONE), ("up", MAKES_ONE), ("down", "")]
)
def test_an_unknown_cluster_has_a_nearest_name(project, verb, hint):
    with pytest.raises(UsageError, match="there is no cluster 'mien'") as refused:
        call(verb, "mien")
    assert refused.value.hint == f"{hint}did you mean 'mine'?"


def test_a_bench_without_a_campaign_is_told_one_of_its_own_cluster(project):
    with pytest.raises(UsageError, match="bench needs a campaign") as refused:
        call("bench", "mine")
    assert refused.value.hint == "gpubed bench mine smoke"


def test_a_folder_without_clusters_is_the_wrong_one(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUBED_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no cluster 'mine'") as refused:
        call("status", "mine")
    assert "cd to the folder that has inventories/" in refused.value.hint


@pytest.mark.parametrize(
    "path", ["inventories/mine", "inventories/mine/", "./inventories/mine/cluster.yml"]
)
def test_a_path_to_a_cluster_is_its_name(project, path):
    done = call("check", path)
    assert done.return_value == 0
    assert "inventories/mine/cluster.yml is right" in done.stdout


def test_a_hint_names_the_cluster_of_the_command_line(project, monkeypatch, capsys):
    def refuse(_):
        raise GpubedError("there is no flavor huge", "gpubed resources CLUSTER")

    monkeypatch.setattr(cli, "build", lambda _: lambda **_: refuse(None))
    monkeypatch.setattr("sys.argv", ["gpubed", "up", "mine"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "gpubed resources mine" in capsys.readouterr().err


def test_a_repair_names_the_cluster_that_was_examined(project, monkeypatch):
    finding = Finding("x", False, "it is missing", "gpubed doctor CLUSTER --fix")
    monkeypatch.setattr(doctor, "examine", lambda _: [finding])
    assert "gpubed doctor mine --fix" in call("doctor", "mine").stdout


def test_a_check_names_its_cluster_where_the_engine_is_missing(project, monkeypatch, capsys):
    local = type(registry.backend("local"))
    monkeypatch.setattr(local, "engine_required", "cli")
    monkeypatch.setattr("sys.argv", ["gpubed", "check", "mine"])
    monkeypatch.setattr("gpubed.engines.stack.choose", lambda _: "embedded")
    with pytest.raises(SystemExit):
        cli.main()
    assert "gpubed doctor mine --fix" in capsys.readouterr().err


@pytest.mark.process
def test_a_plan_that_does_not_fit_is_no_success(project, monkeypatch):
    local = kind("local")
    lack = Finding("x", False, "no worker has 4 GPUs", "gpubed resources CLUSTER")
    monkeypatch.setattr(local, "fits", lambda *_: [lack])
    done = call("plan", "mine", "--engine", "embedded")
    assert done.return_value == 4
    assert "does not fit now: no worker has 4 GPUs\n  → gpubed resources mine" in done.stderr


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a:\n  b: 1\n c: 2\n", 3, "not indented like the lines above it"),
        ("a:\n\tb: 1\n", 2, "a tab: write spaces instead"),
        ("a: 1\ncount: 3\tx\n", 2, "a tab: write spaces instead"),
        ("a: b: c\n", 1, "': ' too many"),
        ("a: 1\nb\nc: 2\n", 3, "a key needs ': '"),
        ('a: "b\n', 2, "a quote is opened and not closed"),
        ("a: [1, 2\nb: 3\n", 2, "needs commas, and ] at its end"),
        ("a: {b: 1\n", 2, "needs commas, and } at its end"),
        ("a: [\n", 2, "is opened and not closed"),
    ],
)
def test_yaml_is_corrected_in_the_words_of_its_writer(text, line, says):
    with pytest.raises(yaml_lines.MalformedYamlError) as refused:
        yaml_lines.parse(text.encode())
    assert says in refused.value.message
    assert refused.value.line == line
