"""`gpubed init`: what it writes, `gpubed check` takes, and an editor finds its schema."""

import json
import re

import pytest
from typer.testing import CliRunner

from gpubed import cli, cluster_schema, registry
from gpubed.errors import UsageError


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


def test_the_nearest_name_that_would_do_is_offered(call):
    with pytest.raises(UsageError) as refused:
        call("init", "My Cluster")
    assert refused.value.hint == "gpubed init my-cluster"


@pytest.mark.parametrize("backend", registry.backend_names())
def test_an_editor_finds_the_schema_in_any_folder(call, tmp_path, backend):
    call("init", "mine", "--backend", backend)
    spec = tmp_path / "inventories" / "mine" / "cluster.yml"
    path = re.search(r"\$schema=(\S+)", spec.read_text())[1]
    found = json.loads((spec.parent / path).read_text())
    assert found == cluster_schema.json_schema()


def test_in_a_checkout_the_schema_is_the_published_one(call, tmp_path):
    published = tmp_path / "docs" / "reference" / "cluster.schema.json"
    published.parent.mkdir(parents=True)
    published.write_text("{}")
    call("init", "mine")
    text = (tmp_path / "inventories" / "mine" / "cluster.yml").read_text()
    assert "$schema=../../docs/reference/cluster.schema.json" in text
    assert not (tmp_path / "inventories" / "cluster.schema.json").exists()


@pytest.mark.parametrize("backend", registry.backend_names())
def test_its_comments_speak_of_the_new_cluster(call, tmp_path, backend):
    call("init", "mine", "--backend", backend)
    text = (tmp_path / "inventories" / "mine" / "cluster.yml").read_text()
    commands = re.findall(r"`gpubed [a-z]+ (\S+?)`", text)
    assert commands
    assert set(commands) == {"mine"}


def test_what_is_written_for_local_nodes_is_right(call):
    call("init", "mine")
    assert call("check", "mine").return_value == 0
