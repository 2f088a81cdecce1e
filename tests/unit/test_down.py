"""What `gpubed down` asks before it removes anything; nothing is removed here."""

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli, lifecycle, registry
from gpubed.errors import UsageError
from gpubed.paths import Project
from support.samples import sample_allocation, sample_plan

SPEC = {
    "version": 1,
    "name": "lab",
    "backend": {"type": "local", "runtime": "vm"},
    "nodes": [{"count": 2}],
}


@pytest.fixture
def question(tmp_path, monkeypatch):
    """A function that returns what `down` asks first about a cluster with that storage."""

    def ask(**shared):
        paths = Project(tmp_path).cluster("lab")
        for folder in (paths.spec.parent, paths.state):
            folder.mkdir(parents=True)
        paths.spec.write_text(yaml.safe_dump({**SPEC, "storage": {"shared": shared}}))
        paths.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
        monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
        monkeypatch.setattr(lifecycle, "data_of", lambda *_: [])
        with pytest.raises(UsageError) as refused:
            CliRunner().invoke(
                cli.build(), ["down", "lab"], standalone_mode=False, catch_exceptions=False
            )
        return refused.value.message.partition(": ")[2]

    return ask


def test_a_volume_has_a_question_of_its_own(question):
    assert question(provider="volume") == "Remove cluster lab and all its nodes?"


@pytest.mark.parametrize(("server", "named"), [(None, "node-0"), ("node-1", "node-1")])
def test_the_node_whose_disk_has_the_shared_storage_is_named(question, server, named):
    asked = question(provider="nfs", server=server)
    assert asked.endswith(f", and the shared storage, which is on the disk of {named}?")


def test_an_own_hosts_disk_stays(question, monkeypatch):
    monkeypatch.setattr(type(registry.backend("local")), "removes_disks", False)
    assert question(provider="nfs") == "Remove cluster lab and all its nodes?"
