"""What `gpubed down` asks before it removes anything; nothing is removed here."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.ui import UI
from gpubed.cluster import down
from gpubed.core import record
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.testbeds.base import Existing
from support.bound import kind
from support.known import mark
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
        monkeypatch.setattr(down, "data_of", lambda *_: [])
        with pytest.raises(UsageError) as refused:
            CliRunner().invoke(
                cli.build(), ["down", "lab"], standalone_mode=False, catch_exceptions=False
            )
        return refused.value.message.partition(": ")[2]

    return ask


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
    volume = Existing("volume", "lab-shared", "v", "u", data=True, size=45 << 20, made=made)
    monkeypatch.setattr(down, "data_of", lambda *_: [volume])

    def run(*words, answers=(), gone=(), kept=()):
        questions, removed, said = [], [], iter(answers)

        def confirm(_, question, *, yes):
            questions.append(question)
            return yes or next(said, False)

        def note(_, text, **__):
            questions.append(text)

        def take_down(*_, keep_data, without):
            removed.append("all but data" if keep_data else "all")
            return down.Removal(gone, kept, [], [])

        monkeypatch.setattr(UI, "confirm", confirm)
        monkeypatch.setattr(UI, "note", note)
        monkeypatch.setattr(down, "down", take_down)
        done = CliRunner().invoke(cli.build(), ["down", "lab", *words], standalone_mode=False)
        return questions, removed, done.stdout if gone else done.exception

    return run


def test_a_volume_has_a_question_of_its_own_with_its_size_and_age(asked):
    questions, removed, _ = asked(answers=[True, True])
    assert questions == [
        "its data is on volume lab-shared, 45 MiB, made 3 d ago",
        "Remove cluster lab and all its nodes?",
        "Remove its data, too: volume lab-shared, 45 MiB, made 3 d ago?",
    ]
    assert removed == ["all"]


def test_a_no_to_the_second_question_removes_nothing(asked):
    _, removed, refused = asked(answers=[True, False])
    assert removed == []
    assert "not confirmed, so nothing was removed: Remove cluster lab" in refused.message
    assert "Remove its data, too: volume lab-shared" in refused.message
    assert refused.hint == "gpubed down lab --keep-data -y, or with its data: gpubed down lab -y"


@pytest.mark.parametrize(("server", "named"), [(None, "node-0"), ("node-1", "node-1")])
def test_the_node_whose_disk_has_the_shared_storage_is_named(question, server, named):
    asked = question(provider="nfs", server=server)
    assert asked.endswith(f", and the shared storage, which is on the disk of {named}?")


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that is not the cluster's, with something in it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_text("42")
    return folder


def take_down(tmp_path, monkeypatch, **options):
    """Runs `down` of a cluster of which nothing is left but its folder."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text(yaml.safe_dump(SPEC))
    there = options.pop("there", [])
    monkeypatch.setattr(kind("local"), "existing", lambda *_: there)
    return down.down(paths, "embedded", **options)


@pytest.mark.parametrize("known", [False, True], ids=["uuid lost", "uuid kept"])
def test_what_may_be_this_one_keeps_its_key(tmp_path, monkeypatch, known):
    """`gpubed audit --adopt`, which `down` recommends then, needs it."""
    paths = Project(tmp_path).cluster("lab")
    paths.secrets.mkdir(parents=True)
    paths.private_key.write_text("KEY")
    if known:
        record.keep_uuid(paths, "6f0c0000-0000-4000-8000-000000000000")
    others = [Existing("container", "gpubed-lab-node-0", "c0", "another")]
    monkeypatch.setattr(kind("local"), "unseen", lambda *_: [])
    done = take_down(tmp_path, monkeypatch, there=others)
    assert done.others == others
    assert paths.private_key.exists() is not known
    assert bool(done.removed) is known, "and so the exit code is 1 where nothing was known"


def test_what_a_link_leads_to_is_not_removed(tmp_path, monkeypatch, elsewhere):
    paths = Project(tmp_path).cluster("lab")
    paths.state.mkdir(parents=True)
    for name in ("secrets", "runs", "facts"):
        (paths.state / name).symlink_to(elsewhere)
    (paths.state / "logs").mkdir()
    (paths.state / "logs" / "deep").symlink_to(elsewhere)
    removed = take_down(tmp_path, monkeypatch).removed
    assert "file .gpubed/lab/secrets" in removed
    assert (elsewhere / "precious").read_text() == "42"
    assert [path.name for path in paths.state.iterdir()] == ["runs"]


@pytest.mark.parametrize(("whose", "log"), [("", []), ("watch", ["logs"])])
def test_results_outlive_the_cluster_and_so_does_the_log_of_a_watch(
    tmp_path, monkeypatch, whose, log
):
    paths = Project(tmp_path).cluster("lab")
    points, reports = paths.campaigns / "smoke" / "points", paths.state / "reports"
    for folder in (paths.runs / "1-digits", reports, paths.checkpoints / "c1", points, paths.facts):
        folder.mkdir(parents=True)
    paths.logs.mkdir()
    mark(paths, reshaped=True)
    take_down(tmp_path, monkeypatch, originator=whose)
    stays = sorted(path.name for path in paths.state.iterdir())
    assert stays == ["campaigns", "checkpoints", *log, "reports", "runs"]
    assert points.is_dir()
