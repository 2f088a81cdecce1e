"""What `gpubed run` is asked for: nodes, repetitions, to go on; and what it refuses."""

import shutil
from types import SimpleNamespace

import pytest

from gpubed import cli
from gpubed.configuration import health
from gpubed.core import runlock
from gpubed.core.errors import UsageError
from gpubed.jobs import checkpoint_files, jobfile, launchers
from gpubed.jobs.checkpoint_files import Files
from gpubed.jobs.runs import record
from gpubed.jobs.runs.record import Choice
from support import samples
from support.run_verb import GOOD, call, cluster, document
from support.stand_in_head import Head

pytestmark = pytest.mark.process

__all__ = ["call", "cluster"]


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["--nodes", "1"], ["node-0"]),
        (["--ranks", "2"], ["node-0", "node-1"]),
        (["--on", "node-2,head"], ["node-0", "node-2"]),
    ],
)
def test_a_part_of_the_cluster_is_used(call, words, hosts):
    told = document(call("run", "lab", "digits", *words, "--json"))
    assert told["world_size"] == len(hosts)
    shown = document(call("runs", "lab", "show", told["run_id"], "--json"))
    assert [host["name"] for host in shown["origin"]["hosts"]] == hosts


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["digits", "--nodes", "4"], "cluster lab has 1 to 3"),
        (["digits", "--nodes", "1", "--ranks", "1"], "exclude each other"),
        (["digits", "--", "20"], "'20' belongs to no argument"),
        (["digits", "--", "--epoch", "20"], "no argument 'epoch'"),
        (["digits", "--on", ","], "--on names no node"),
        (["--again", "last", "--nodes", "1"], "takes no others"),
        (["--again", "2026"], "has no run '2026'"),
        ([], "which job"),
        (["--"], "no command stands behind"),
        (["python", "train.py"], "a command stands behind"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_starts(call, cluster, words, why):
    with pytest.raises(UsageError, match=why):
        call("run", "lab", *words)
    assert not cluster.runs.exists()


def test_without_a_job_each_is_listed_with_what_it_does(call, cluster):
    """Those of the project, too, also one that cannot be used."""
    samples.job_with_checkpoints(cluster.project.jobs / "mine")
    (cluster.project.jobs / "torn").mkdir()
    (cluster.project.jobs / "torn/job.yml").write_text("schema: gpubed/job/1\n")
    with pytest.raises(UsageError, match="which job") as refused:
        call("run", "lab")
    lines = [line.split(maxsplit=1) for line in refused.value.message.splitlines()[1:]]
    listed = dict(lines)
    assert list(listed) == list(jobfile.names())
    assert listed["digits"] == jobfile.load("digits").description
    assert listed["mine"] == "x"
    assert "torn/job.yml" in listed["torn"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--launcher", "slurm"], "has no Slurm"),
        (["--launcher", "ssj"], "there is no launcher 'ssj'"),
        (["--container", "image"], "has no Docker"),
    ],
)
def test_what_cannot_start_does_not_say_that_it_starts(cluster, monkeypatch, capfd, words, why):
    monkeypatch.setattr(health, "usable", lambda cluster: (cluster, []))
    command = ["run", "lab", "digits", *words]
    with pytest.raises(UsageError, match=why):
        cli.build("run")(command, standalone_mode=False)
    assert "starts" not in "".join(capfd.readouterr())


def test_a_look_starts_nothing(call, cluster):
    told = document(
        call("run", "lab", "digits", "--dry-run", "--ranks", "2", "--repeat", "3", "--json")
    )
    assert (told["dry_run"], told["world_size"], told["repeat"]) == (True, 2, 3)
    assert told["command"][:2] == ["python", "main.py"]
    assert not cluster.runs.exists()
    assert "would start 3 rank(s)" in call("run", "lab", "digits", "--dry-run").stdout


def test_repetitions_are_put_together(call):
    told = document(call("run", "lab", "digits", "--repeat", "3", "--json"))
    assert [trial["status"] for trial in told["trials"]] == ["ok"] * 3
    assert told["statistics"]["images_per_s"]["n"] == 3
    assert told["images_per_s"] == pytest.approx(3001)
    listed = document(call("runs", "lab", "--json"))["runs"]
    assert len({run["set"] for run in listed}) == 1


def test_a_repetition_that_fails_fails_the_whole(call, monkeypatch):
    done = iter([0, 1, 0])

    def start(_cluster, launch, _say):
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        return next(done)

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    whole = call("run", "lab", "digits", "--repeat", "3", "--json")
    assert whole.return_value == 1
    assert [trial["status"] for trial in document(whole)["trials"]] == ["ok", "failed", "ok"]
    states = [run["status"] for run in document(call("runs", "lab", "--json"))["runs"]]
    assert states == ["ok", "failed", "ok"]


def test_a_run_is_repeated_and_it_is_said_what_is_not_as_it_was(call, cluster):
    first = document(call("run", "lab", "digits", "--set", "epochs=3", "--nodes", "2", "--json"))
    cluster.spec.write_text(cluster.spec.read_text() + "# changed\n")
    again = call("run", "lab", "--again", "last", "--json")
    assert f"not as in {first['run_id']}: cluster.yml" in again.stderr
    shown = document(call("runs", "lab", "show", "last", "--json"))
    assert shown["again"] == first["run_id"]
    assert (shown["world_size"], shown["values"]["epochs"]) == (2, 3)


def test_a_run_goes_on_with_what_it_was_asked_for(call, cluster):
    words = ("--set", "checkpoint=mine", "--set", "steps=40", "--nodes", "2", "--json")
    first = document(call("run", "lab", "imagenet", *words))["run_id"]
    then = document(call("run", "lab", "--resume", first, "--set", "steps=80", "--json"))
    kept = record.find(cluster, then["run_id"])
    assert (kept.resumes, kept.again) == (first, "")
    assert kept.request.settings == {"checkpoint": "mine", "steps": "80"}
    assert kept.request.choice == Choice(nodes=2)
    assert f"goes on from {first}" in call("runs", "lab", "show", then["run_id"]).stdout
    last = document(call("run", "lab", "imagenet", "--resume", first, "--ranks", "3", "--json"))
    assert last["world_size"] == 3
    assert record.find(cluster, last["run_id"]).request.choice == Choice(ranks=3)


def test_what_left_nothing_to_go_on_from_is_refused(call):
    none = document(call("run", "lab", "imagenet", "--json"))["run_id"]
    other = document(call("run", "lab", "digits", "--json"))["run_id"]
    kept = document(call("run", "lab", "imagenet", "--set", "checkpoint=mine", "--json"))["run_id"]
    for words, said in {
        ("--resume", none): f"run {none} kept no checkpoint",
        ("--resume", other): f"run {other} kept no checkpoint",
        ("digits", "--resume", kept): "one of imagenet, not of digits",
        ("--resume", kept, "--again", kept): "takes no others",
        ("--resume", kept, "--repeat", "2"): "resume from the checkpoint of the run before",
        ("--resume", "never"): "has no run",
    }.items():
        with pytest.raises(UsageError, match=said):
            call("run", "lab", *words)


def test_a_run_is_not_repeated_from_what_it_left(call, monkeypatch):
    kept = document(call("run", "lab", "imagenet", "--set", "checkpoint=mine", "--json"))["run_id"]
    left = Files(finished=frozenset({("step-1.pt", "1 1")}))
    monkeypatch.setattr(checkpoint_files, "look", lambda *_: left)
    for words in ((), ("--dry-run",), ("--detach",)):
        with pytest.raises(
            UsageError, match=rf"{kept} would resume from its checkpoint in /shared/.*/mine"
        ) as no:
            call("run", "lab", "--again", kept, *words)
        assert no.value.hint.startswith(
            "gpubed run lab --set checkpoint=NAME imagenet begins anew; "
        )
    monkeypatch.setattr(checkpoint_files, "look", lambda *_: Files())
    assert call("run", "lab", "--again", kept, "--dry-run").return_value == 0


def test_a_run_at_work_does_not_go_on_twice(call, cluster):
    done = document(call("run", "lab", "imagenet", "--set", "checkpoint=mine", "--json"))["run_id"]
    folder = cluster.runs / done
    record.write(folder, record.read(folder).model_copy(update={"state": "running"}))
    with runlock.locked(folder / "lock", "run"), pytest.raises(UsageError, match="is at work"):
        call("run", "lab", "--resume", done)


@pytest.fixture
def mine(tmp_path):
    """The folder of a project's own job."""
    folder = tmp_path / "jobs" / "mine"
    shutil.copytree(jobfile.folder("digits"), folder)
    return folder
