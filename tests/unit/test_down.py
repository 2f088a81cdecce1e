"""What `gpubed down` asks before it removes anything; nothing is removed here."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli, lifecycle, registry
from gpubed.backends.base import Existing
from gpubed.cli.ui import UI
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


def test_without_a_volume_there_is_one_question(question):
    assert question(provider="volume") == "Remove cluster lab and all its nodes?"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A function that runs `down` with answers, and returns its questions and what it did.

    The volume is a STAND-IN, and so is what removes.
    """
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text(yaml.safe_dump(SPEC))
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    made = datetime.now(UTC) - timedelta(days=3)
    volume = Existing("volume", "lab-shared", "v", "u", data=True, size=5 << 30, made=made)
    monkeypatch.setattr(lifecycle, "data_of", lambda *_: [volume])

    def run(*words, answers=()):
        questions, removed, said = [], [], iter(answers)

        def confirm(_, question, *, yes, default):
            questions.append(question)
            return yes or next(said, default)

        def down(*_, keep_data):
            removed.append("all but data" if keep_data else "all")
            return lifecycle.Removal([], [], [], [])

        monkeypatch.setattr(UI, "confirm", confirm)
        monkeypatch.setattr(lifecycle, "down", down)
        done = CliRunner().invoke(cli.build(), ["down", "lab", *words], standalone_mode=False)
        return questions, removed, done.exception

    return run


def test_a_volume_has_a_question_of_its_own_with_its_size_and_age(asked):
    questions, removed, _ = asked(answers=[True, True])
    assert questions == [
        "Remove cluster lab and all its nodes?",
        "Remove its data, too: volume lab-shared, 5.0 GiB, made 3 d ago?",
    ]
    assert removed == ["all"]


def test_a_no_to_the_second_question_removes_nothing(asked):
    _, removed, refused = asked(answers=[True, False])
    assert removed == []
    assert "not confirmed, so nothing was removed: Remove cluster lab" in refused.message
    assert "Remove its data, too: volume lab-shared" in refused.message
    assert refused.hint == "gpubed down lab --keep-data -y, or with its data: gpubed down lab -y"


def test_nobody_is_asked_about_data_that_is_kept(asked):
    questions, removed, _ = asked("--keep-data", answers=[True])
    assert (questions, removed) == (["Remove cluster lab and all its nodes?"], ["all but data"])


@pytest.mark.parametrize(("server", "named"), [(None, "node-0"), ("node-1", "node-1")])
def test_the_node_whose_disk_has_the_shared_storage_is_named(question, server, named):
    asked = question(provider="nfs", server=server)
    assert asked.endswith(f", and the shared storage, which is on the disk of {named}?")


def test_an_own_hosts_disk_stays(question, monkeypatch):
    monkeypatch.setattr(type(registry.backend("local")), "removes_disks", False)
    assert question(provider="nfs") == "Remove cluster lab and all its nodes?"
