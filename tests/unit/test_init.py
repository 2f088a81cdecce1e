"""`gpubed init`: what it writes, `gpubed check` takes, and an editor finds its schema."""

import json
import re

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
from gpubed.jobs import jobfile
from gpubed.spec import backend_config, schema


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs gpubed in an empty folder."""
    monkeypatch.delenv("GPUBED_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(
        cli.build(), [*words], standalone_mode=False, catch_exceptions=False
    )


@pytest.mark.parametrize("name", ["My Cluster", "Lab", "-lab", "lab-", "pulumi", "a" * 31, "../x"])
def test_a_name_that_check_would_refuse_is_refused_at_once(call, tmp_path, name):
    with pytest.raises(UsageError, match=r"lower-case letters, digits and '-'|is reserved"):
        call("init", name) if not name.startswith("-") else call("init", "--", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("backend", backend_config.types())
def test_an_editor_finds_the_schema_in_any_folder(call, tmp_path, backend):
    call("init", "mine", "--backend", backend)
    spec = tmp_path / "inventories" / "mine" / "cluster.yml"
    path = re.search(r"\$schema=(\S+)", spec.read_text())[1]
    found = json.loads((spec.parent / path).read_text())
    assert found == schema.json_schema()


@pytest.mark.parametrize(
    ("backend", "places"),
    [
        ("gpulab", ["backend.project"]),
        ("openstack", ["backend.access_from.0"]),
        ("slices", ["backend.project"]),
        ("virtualwall", ["backend.project"]),
        ("geni", ["backend.project"]),
        ("static", ["backend.hosts.node.0.address", "backend.hosts.node.1.address"]),
    ],
)
def test_what_is_to_be_filled_in_is_refused_until_it_is(call, tmp_path, backend, places):
    call("init", "mine", "--backend", backend)
    done = call("check", "mine", "--json")
    errors = json.loads(done.stdout)["errors"]
    assert (done.return_value, [error["path"] for error in errors]) == (2, places)
    lines = (tmp_path / "inventories" / "mine" / "cluster.yml").read_text().splitlines()
    assert all("# fill in: " in lines[error["line"] - 1] for error in errors)
    assert all("as `gpubed init` wrote it" in error["message"] for error in errors)


def test_what_is_written_for_local_nodes_is_right(call):
    call("init", "mine")
    assert call("check", "mine").return_value == 0


def test_a_job_is_written_that_run_finds_and_that_needs_no_change(call, tmp_path):
    call("init", "--job", "mine")
    folder = tmp_path / "jobs" / "mine"
    assert jobfile.folder("mine") == folder
    assert jobfile.load("mine").words("mine", {})[:2] == ["python", "main.py"]
    assert {path.name for path in folder.iterdir()} == {"job.yml", "main.py", "README.md"}
    assert (folder / "README.md").read_text().startswith("# mine\n")
    assert "gpubed run CLUSTER mine" in (folder / "job.yml").read_text()


@pytest.mark.parametrize("name", ["../x", "My Job", "", "1st", "a" * 31])
def test_a_job_has_a_name_that_a_folder_can_have(call, tmp_path, name):
    with pytest.raises(UsageError, match="a job cannot be named"):
        call("init", "--job", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["digits", "mine"])
def test_a_job_that_is_there_is_left_alone(call, name):
    if name == "mine":
        call("init", "--job", name)
    with pytest.raises(UsageError, match=f"there is a job '{name}' already"):
        call("init", "--job", name)


@pytest.mark.parametrize("words", [[], ["mine", "--job", "mine"]])
def test_init_writes_one_thing(call, tmp_path, words):
    with pytest.raises(UsageError, match="init writes a cluster or a job"):
        call("init", *words)
    assert not list(tmp_path.iterdir())
