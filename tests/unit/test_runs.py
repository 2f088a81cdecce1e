"""What a run leaves behind: a record that it can be repeated by, and compared with."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.checks import network
from gpubed.checks.context import Context
from gpubed.configuration import health
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.jobs import execution, jobfile, launchers, leftovers
from gpubed.jobs.runs import compare, record
from gpubed.jobs.runs import origin as origins
from gpubed.jobs.runs.record import Choice, Record, Request
from gpubed.nodes.verification import Check, Verification
from gpubed.testbeds.specification import load_cluster
from support.samples import granted_cluster
from support.stand_in_head import Head

GOOD = {"world_size": 3, "test_accuracy": 0.98, "loss": 0.1, "images_per_s": 3000.0}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return granted_cluster(tmp_path)


@pytest.fixture
def call(cluster, monkeypatch):
    """A function that calls the command line; jobs start on a STAND-IN, which says how fast."""
    told = iter(range(1000))

    def start(_cluster, launch, say):
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        Head.metrics["images_per_s"] = 1000.0 * launch.ranks + next(told) % 3
        say("progress: 1/1 epochs")
        return 0

    monkeypatch.setattr(execution, "SSH", Head)
    monkeypatch.setattr(leftovers, "end", lambda *_: [])
    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    monkeypatch.setattr(health, "usable", lambda cluster: (cluster, []))

    def run(*words):
        return CliRunner().invoke(
            cli.build(), [*words], standalone_mode=False, catch_exceptions=False
        )

    return run


def document(done):
    return json.loads(done.stdout)


def test_what_autotune_found_is_kept_and_shown(call, cluster, monkeypatch):
    found = {"tuned_fusion_mb": 7.4725, "tuned_cycle_ms": 9.96357, "tuned_rate_bps": 1346616000.0}
    for name, value in (found | {"checkpoint_failures": None, "loss_fall": None}).items():
        monkeypatch.setitem(GOOD, name, value)
    told = document(call("run", "lab", "imagenet", "--set", "autotune=true", "--json"))
    kept = record.read(cluster.runs / told["run_id"])
    assert kept.state == "ok"
    assert kept.metrics.items() >= found.items()
    shown = call("runs", "lab", "show", "last").stdout
    for line in ("fusion_mb = 7.473 MiB", "cycle_ms = 9.964 ms", "rate_bps = 1.35 Gbit/s"):
        assert f"  tuned_{line}" in shown, shown


def test_a_run_says_what_it_is_called_and_keeps_what_it_was_made_with(call, cluster):
    told = document(call("run", "lab", "digits", "--set", "epochs=3", "--json"))
    folder = cluster.runs / told["run_id"]
    kept = record.read(folder)
    assert (kept.state, kept.world_size, kept.values["epochs"]) == ("ok", 3, 3)
    assert kept.request.settings == {"epochs": "3"}
    assert kept.metrics == told["metrics"]
    assert [host.name for host in kept.origin.hosts] == ["node-0", "node-1", "node-2"]
    assert (folder / "origin" / "cluster.yml").read_bytes() == cluster.spec.read_bytes()
    assert (folder / "origin" / "allocation.json").exists()
    assert record.unsealed(folder) == []
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder, check=False).returncode == 0


def test_a_full_disk_names_the_file_of_the_run(call, monkeypatch):
    """What the job prints goes to `/dev/full`, which is as full as a disk."""
    monkeypatch.setattr(record, "OUTPUT", "/dev/full")
    monkeypatch.setattr(leftovers, "end", lambda *_: ["something was left"])
    with pytest.raises(OSError, match="No space left on device") as full:
        call("run", "lab", "digits")
    assert full.value.filename == "/dev/full"


def test_what_of_a_run_stayed_on_the_node_is_told_and_kept(call, cluster, monkeypatch):
    monkeypatch.setattr(Head, "left_out", ("'sparse' is left out: it has 1 TiB",))
    told = document(call("run", "lab", "digits", "--json"))
    folder = cluster.runs / told["run_id"]
    assert "'sparse' is left out: it has 1 TiB\n" in (folder / "output.log").read_text()


def test_what_a_job_says_passes_for_no_line_of_ours(call, cluster):
    folder = cluster.runs / document(call("run", "lab", "digits", "--json"))["run_id"]
    kept = record.read(folder)
    forged = {"a\n  world_size = 9": 1, "device": "cpu\n  failed: no"}
    older = {"metrics": {**kept.metrics, **forged}, "failures": ("x is y\nfolder: /tmp",)}
    record.write(folder, kept.model_copy(update=older))
    shown = call("runs", "lab", "show", "last").stdout
    assert "  a   world_size = 9 = 1\n" in shown
    assert "  device = cpu   failed: no\n" in shown
    assert "  failed: x is y folder: /tmp\n" in shown


def test_what_nodes_and_links_are_is_kept(call, cluster):
    facts = {"schema": "gpubed/facts/2", "host": "h", "kernel": "6", "cpus": 8}
    cluster.facts.mkdir()
    (cluster.facts / "id-node-0.json").write_text(json.dumps({**facts, "memory_kib": 16 << 20}))
    link = Check(id="link.rate", node="node-0>node-1", result="pass", value=191.5, unit="Mbit/s")
    Verification(
        cluster="lab", at="2026-01-01T00:00:00+00:00", node_ids=("id-node-0",), checks=(link,)
    ).save(cluster.verification)
    call("run", "lab", "digits")
    origin = record.find(cluster, "last").origin
    assert [host.hardware for host in origin.hosts] == ["8 CPUs, 16 GiB", None, None]
    assert origin.rates_bps == {"node-0>node-1": 191.5e6}
    assert "node-0: 1 rank(s), 8 CPUs, 16 GiB" in call("runs", "lab", "show", "last").stdout


def test_what_verify_measured_is_marked_and_is_never_the_last(call, cluster):
    call("run", "lab", "digits")
    network._allreduce(Context(load_cluster(cluster), {}), 0.5, 0.5)
    own, theirs = document(call("runs", "lab", "--json"))["runs"]
    assert (own["job"], own["by"]) == ("digits", "")
    assert (theirs["job"], theirs["by"]) == ("allreduce", "verify")
    assert document(call("runs", "lab", "show", "last", "--json"))["run_id"] == own["run_id"]
    rows = [line.split() for line in call("runs", "lab").stdout.splitlines()]
    assert any("by" in row for row in rows)
    told = {row[0]: "verify" in row for row in rows if row}
    assert (told[own["run_id"]], told[theirs["run_id"]]) == (False, True)
    assert "  by verify\n" in call("runs", "lab", "show", theirs["run_id"]).stdout


def test_there_is_no_last_run_where_only_verify_measured(call, cluster):
    network._allreduce(Context(load_cluster(cluster), {}), 0.5, 0.5)
    with pytest.raises(UsageError, match="has no run yet"):
        call("runs", "lab", "show", "last")


def test_what_was_changed_since_is_named(call, cluster):
    call("run", "lab", "digits")
    folder = next(cluster.runs.iterdir())
    (folder / "metrics.json").write_text("{}")
    (folder / "output.log").unlink()
    (folder / "new").touch()
    assert record.unsealed(folder) == ["metrics.json", "new", "output.log"]
    assert (
        "not as at its end: metrics.json, new, output.log"
        in call("runs", "lab", "show", "last").stderr
    )


def test_nothing_secret_is_kept(call, cluster):
    cluster.secrets.mkdir()
    (cluster.secrets / "token").write_text("hush-hush")
    call("run", "lab", "digits")
    everything = subprocess.run(
        ["grep", "-r", "hush-hush", str(cluster.runs)], capture_output=True, check=False
    )
    assert everything.returncode == 1


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


def test_arguments_come_as_the_job_has_them(call):
    told = document(
        call("run", "lab", "digits", "--json", "--", "--epochs", "3", "--learning-rate=0.01")
    )
    shown = document(call("runs", "lab", "show", told["run_id"], "--json"))
    assert (shown["values"]["epochs"], shown["values"]["learning_rate"]) == (3, 0.01)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["digits", "--nodes", "4"], "cluster lab has 1 to 3"),
        (["digits", "--nodes", "1", "--ranks", "1"], "exclude each other"),
        (["digits", "--", "20"], "'20' belongs to no argument"),
        (["digits", "--", "--epoch", "20"], "no argument 'epoch'"),
        (["digits", "--on", "node-0,", "node-1"], "there is a space in --on, before 'node-1'"),
        (["digits", "--on", "node-0", ",node-1"], "there is a space in --on, before ',node-1'"),
        (["--again", "last", "--nodes", "1"], "takes nothing beside it"),
        (["--again", "2026"], "has no run '2026'"),
        ([], "which job"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_starts(call, cluster, words, why):
    with pytest.raises(UsageError, match=why):
        call("run", "lab", *words)
    assert not cluster.runs.exists()


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


@pytest.mark.parametrize("words", [(), ("--repeat", "2")])
def test_metrics_that_the_description_has_not_or_has_alone_are_a_note(call, monkeypatch, words):
    monkeypatch.setitem(GOOD, "lost", 3)
    done = call("run", "lab", "digits", *words)
    assert done.return_value == 0
    (line,) = (line for line in done.stdout.splitlines() if "job.yml" in line)
    assert line.startswith("metrics.json is not as job.yml says: not declared: lost; not reported:")
    assert "test_loss" in line
    assert "test_accuracy" not in line


def test_metrics_that_are_as_declared_need_no_note(call, monkeypatch):
    for name in jobfile.load("digits").metrics:
        monkeypatch.setitem(GOOD, name, GOOD.get(name))
    assert "job.yml" not in call("run", "lab", "digits").stdout


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


def test_runs_are_listed_and_chosen(call):
    assert "there is no run yet" in call("runs", "lab").stdout
    assert "there is no such run yet" in call("runs", "lab", "--job", "digits").stdout
    call("run", "lab", "digits")
    call("run", "lab", "digits", "--nodes", "1")
    assert len(document(call("runs", "lab", "--json"))["runs"]) == 2
    assert len(document(call("runs", "lab", "--last", "1", "--json"))["runs"]) == 1
    assert document(call("runs", "lab", "--status", "failed", "--json"))["runs"] == []
    assert document(call("runs", "lab", "--job", "allreduce", "--json"))["runs"] == []
    assert "digits" in call("runs", "lab").stdout


def test_two_sets_are_compared(call):
    one = document(call("run", "lab", "digits", "--nodes", "1", "--repeat", "3", "--json"))
    two = document(call("run", "lab", "digits", "--nodes", "2", "--repeat", "3", "--json"))
    names = [told["trials"][0]["run_id"] for told in (one, two)]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    rates = {row["metric"]: row for row in pair["metrics"]}
    assert rates["images_per_s"]["verdict"] == "differs"
    assert rates["images_per_s"]["ratio"] == pytest.approx(2, rel=0.01)
    assert rates["loss"]["verdict"] == "the same"
    assert {row["what"] for row in pair["differences"]} == {"world size", "nodes", "machines"}
    assert "differs" in call("runs", "lab", "compare", *names).stdout


def test_runs_of_one_set_are_compared_as_they_are(call):
    """Else both sides were the whole set, and nothing ever differed."""
    told = document(call("run", "lab", "digits", "--repeat", "2", "--json"))
    names = [trial["run_id"] for trial in told["trials"]]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    assert {tuple(row["runs"]) for row in pair["metrics"]} == {(1, 1)}


def test_a_figure_that_one_repetition_lacks_is_of_the_others(call, cluster):
    told = document(call("run", "lab", "digits", "--repeat", "3", "--json"))
    first = cluster.runs / told["trials"][0]["run_id"]
    known = json.loads((first / "run.json").read_text())
    known["metrics"]["loss"] = None
    (first / "run.json").write_text(json.dumps(known))
    other = document(call("run", "lab", "digits", "--json"))["run_id"]
    done = call("runs", "lab", "compare", other, first.name, "--json")
    rows = {row["metric"]: row for row in document(done)["comparisons"][0]["metrics"]}
    assert rows["loss"]["runs"] == [1, 2]


def test_a_run_says_what_its_links_were_held_to(call, cluster, monkeypatch):
    call("run", "lab", "digits")
    declared = record.find(cluster, "last")
    origin = declared.origin.model_copy(update={"rate_bps": 10_000_000})
    slower = declared.model_copy(update={"origin": origin})
    assert declared.origin.rate_bps == 200_000_000
    said = [str(one) for one in compare.differences(slower, declared)]
    assert said == ["link rate: 10 Mbit/s → 200 Mbit/s"]


def test_a_campaign_is_in_nobodys_way(call, cluster):
    with runlock.measuring(cluster.state, "bench"), pytest.raises(Locked, match="gpubed bench"):
        call("run", "lab", "digits")
    with runlock.measuring(cluster.state, "bench"):
        assert call("run", "lab", "digits", "--dry-run").return_value == 0


def test_what_goes_on_from_another_is_no_repetition(call):
    words = ("--set", "checkpoint=mine", "--repeat", "2")
    with pytest.raises(UsageError, match="no repetition"):
        call("run", "lab", "imagenet", *words)


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
        ("--resume", other): "job digits cannot go on",
        ("digits", "--resume", kept): "one of imagenet, not of digits",
        ("--resume", kept, "--again", kept): "takes nothing beside it",
        ("--resume", kept, "--repeat", "2"): "no repetition",
        ("--resume", "never"): "has no run",
    }.items():
        with pytest.raises(UsageError, match=said):
            call("run", "lab", *words)


def test_a_run_at_work_does_not_go_on_twice(call, cluster):
    done = document(call("run", "lab", "imagenet", "--set", "checkpoint=mine", "--json"))["run_id"]
    folder = cluster.runs / done
    record.write(folder, record.read(folder).model_copy(update={"state": "running"}))
    with runlock.locked(folder / "lock", "run"), pytest.raises(UsageError, match="is at work"):
        call("run", "lab", "--resume", done)


def test_changes_on_top_of_a_commit_are_told_apart(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "play.yml").write_text("a")
    git("add", ".")
    git("commit", "-m", "first")
    seen = [origins.commit(tmp_path)]
    for text in ("b", "c"):
        (tmp_path / "play.yml").write_text(text)
        seen.append(origins.commit(tmp_path))
    assert [one.clean for one in seen] == [True, False, False]
    assert len({str(one) for one in seen}) == 3


def test_single_runs_say_that_nothing_can_be_said(call):
    names = [document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2)]
    [pair] = document(call("runs", "lab", "compare", *names, "--json"))["comparisons"]
    assert pair["differences"] == []
    verdicts = {row["metric"]: row["verdict"] for row in pair["metrics"]}
    assert verdicts.pop("world_size") == "the same", "a setting is no measurement"
    assert set(verdicts.values()) == {"unknown: no repetition"}


def test_old_ones_go_only_when_told_to(call, cluster):
    for _ in range(3):
        call("run", "lab", "digits")
    with pytest.raises(UsageError, match="not confirmed") as refused:
        call("runs", "lab", "prune", "--last", "1")
    assert refused.value.hint == "gpubed runs lab prune --last 1 -y"
    newest = max(path.name for path in cluster.runs.iterdir())
    told = document(call("runs", "lab", "prune", "--last", "1", "-y", "--json"))
    assert len(told["removed"]) == 2
    assert [path.name for path in cluster.runs.iterdir()] == [newest]


def test_what_was_never_described_goes_with_them(call, cluster):
    old = cluster.runs / "20200101-000000000-digits"
    old.mkdir(parents=True)
    (old / "lock").touch()
    results = cluster.runs / "20200101-000000001-digits"
    results.mkdir()
    (results / "metrics.json").write_text("{}")
    beginning = cluster.runs / "20990101-000000000-digits"
    beginning.mkdir()
    call("run", "lab", "digits")
    done = document(call("runs", "lab", "prune", "--last", "1", "-y", "--json"))
    assert (done["removed"], done["kept"]) == ([old.name], 1)
    assert results.exists()
    assert beginning.exists()


def test_a_run_that_cannot_be_described_leaves_no_folder(call, cluster, monkeypatch):
    real = record.Record
    monkeypatch.setattr(execution, "Record", lambda **all_: real(**all_ | {"command": ("\udcff",)}))
    with pytest.raises(UsageError, match="cannot be described"):
        call("run", "lab", "digits")
    assert not list(cluster.runs.glob("*"))


def test_an_argument_that_is_not_utf_8_is_refused():
    assert "is not UTF-8" in jobfile.Argument(type="str", help="any").fault("a\udcffb")


@pytest.fixture
def mine(tmp_path):
    """The folder of a project's own job."""
    folder = tmp_path / "jobs" / "mine"
    shutil.copytree(jobfile.folder("digits"), folder)
    return folder


def test_what_comes_from_nodes_has_none_of_gpubeds_own_names(call, cluster, monkeypatch):
    asked, real = [], Head.get

    def get(self, remote, here, own):
        asked.append(own)
        return real(self, remote, here, own)

    monkeypatch.setattr(Head, "get", get)
    name = document(call("run", "lab", "digits", "--json"))["run_id"]
    [own] = asked
    assert {path.name for path in (cluster.runs / name).iterdir()} == {*own, "metrics.json"}


def test_a_job_with_gpubeds_own_names_is_refused_before_it_begins(call, cluster, mine):
    for name in ("origin", "lock"):
        (mine / name).touch()
    (mine / "plots").mkdir()
    (mine / "plots" / "run.json").touch()
    with pytest.raises(UsageError, match=r"^lock, origin in .*/mine: in a run") as refused:
        call("run", "lab", "mine")
    assert f"mv {mine}/lock {mine}/job-lock && mv {mine}/origin" in refused.value.hint
    assert not list(cluster.runs.glob("*"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_so_is_one_with_what_cannot_be_copied(call, cluster, mine, make):
    make(mine / "pipe")
    with pytest.raises(UsageError, match="mine/pipe' cannot be copied: it is neither file"):
        call("run", "lab", "mine")
    assert not list(cluster.runs.glob("*"))


def test_and_one_with_a_name_that_is_not_utf_8(call, cluster, mine):
    (mine / os.fsdecode(b"caf\xe9")).touch()
    with pytest.raises(UsageError, match="cannot be copied: its name is not UTF-8"):
        call("run", "lab", "mine")
    assert not list(cluster.runs.glob("*"))


@pytest.mark.parametrize("name", ["new\nline", "back\\nslash", "a\r", "\u2028", "two  words", "\\"])
def test_whatever_a_file_is_called_its_checksum_is_found(tmp_path, name):
    (tmp_path / name).write_text("a")
    record.seal(tmp_path)
    assert record.unsealed(tmp_path) == []
    check = ["sha256sum", "--check", "--strict", "--quiet", record.SUMS]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / name).write_text("b")
    assert record.unsealed(tmp_path) == [name]


def test_a_run_without_files_is_as_it_was(tmp_path):
    record.seal(tmp_path)
    assert record.unsealed(tmp_path) == []


def test_an_ambiguous_name_is_refused(call):
    for _ in range(2):
        call("run", "lab", "digits")
    with pytest.raises(UsageError, match="2 runs of lab begin with '20'"):
        call("runs", "lab", "show", "20")
    for words in (["show"], ["compare", "last"], ["list", "last"], ["remove"]):
        with pytest.raises(UsageError):
            call("runs", "lab", *words)


def test_what_a_former_version_left_is_passed_over_and_what_is_damaged_named(call, cluster):
    (cluster.runs / "20260101-000000000-digits").mkdir(parents=True)
    damaged = cluster.runs / "20260102-000000000-digits"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    done = call("runs", "lab", "--json")
    assert document(done)["runs"] == []
    assert str(damaged) in done.stderr


def test_what_was_ended_tells_how_far_it_came_and_what_it_took(call, cluster, monkeypatch):
    """`runs show last` was named as what tells it, and said only that somebody ended it."""

    def start(_cluster, _launch, say):
        for line in ("[0]<stdout>:progress: 3/200 epochs, 3552 images/s", "[1]<stderr>:a word"):
            say(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    call("run", "lab", "digits")
    shown = document(call("runs", "lab", "show", "last", "--json"))
    assert shown["status"] == "interrupted"
    came = {"done": 3, "of": 200, "what": "epochs", "words": "3552 images/s"}
    assert shown["progress"] == came
    assert 0 <= shown["seconds"] < 60
    kept = json.loads((cluster.runs / shown["run_id"] / "run.json").read_text())
    assert kept["progress"] == came
    assert "came to epochs: 3 of 200, 3552 images/s" in call("runs", "lab", "show", "last").stdout
    listed = call("runs", "lab").stdout
    assert "epochs: 3 of 200" in listed
    assert "0:00:0" in listed


def beside(cluster, monkeypatch, others, **changes):
    """Let a second run start and end while each run is at work; `others` takes its name."""

    def start(_cluster, launch, _say):
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        if not others:
            mine = record.find(cluster, "last")
            name = f"20990101-00000000{len(list(cluster.runs.iterdir()))}-digits"
            others.append(name)
            host = mine.origin.hosts[0].model_copy(update=changes)
            origin = mine.origin.model_copy(update={"hosts": (host,)})
            ended = {"run_id": name, "state": "ok", "seconds": 0.001, "origin": origin}
            one = mine.model_copy(update={**ended, "started": record.now()})
            (cluster.runs / name).mkdir()
            record.write(cluster.runs / name, one)
        return 0

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))


def test_a_run_beside_which_another_was_at_work_says_so_ever_after(call, cluster, monkeypatch):
    others = []
    beside(cluster, monkeypatch, others)
    done = call("run", "lab", "digits", "--repeat", "2")
    (other,) = others
    ids = sorted(path.name for path in cluster.runs.iterdir() if path.name != other)
    said = f"{ids[0]} shared its nodes with {other}: its figures are of both"
    assert said in done.stdout
    assert f"{ids[1]} shared" not in done.stdout
    shown = document(call("runs", "lab", "show", ids[0], "--json"))
    assert shown["shared_with"] == [other]
    assert said in call("runs", "lab", "show", ids[0]).stdout
    assert said in call("runs", "lab", "compare", *ids).stdout


def test_a_run_on_other_nodes_disturbs_none(call, cluster, monkeypatch):
    beside(cluster, monkeypatch, [], id="id-of-another")
    assert document(call("run", "lab", "digits", "--json"))["shared_with"] == []


def test_who_is_found_at_work_is_in_the_record_of_who_came_second(call, cluster, monkeypatch):
    """It may be no run of this controller, such as one from JupyterLab."""
    there = leftovers.AtWork("20990101-notebook", "2 process(es) on node-1")
    monkeypatch.setattr(leftovers, "end", lambda *_: [there])
    told = document(call("run", "lab", "digits", "--json"))
    assert told["shared_with"] == ["20990101-notebook"]
    assert record.find(cluster, "last").shared_with == ("20990101-notebook",)


def test_where_nothing_can_be_compared_it_is_said_why(call, cluster, monkeypatch):
    call("run", "lab", "digits")
    first = record.find(cluster, "last")
    monkeypatch.setattr(
        launchers, "named", lambda _: SimpleNamespace(run=lambda *_: Head.metrics.clear() or 1)
    )
    call("run", "lab", "digits")
    failed = record.find(cluster, "last")
    said = call("runs", "lab", "compare", first.run_id, failed.run_id).stdout
    why = f"nothing to compare: {failed.run_id} ended as failed and reported no number"
    assert why in said
    assert "verdict" not in said
    request = failed.request.model_copy(update={"job": "allreduce"})
    other = failed.model_copy(update={"request": request, "metrics": {"busbw_bps": 1.0}})
    record.write(cluster.runs / failed.run_id, other.model_copy(update={"state": "ok"}))
    said = call("runs", "lab", "compare", first.run_id, failed.run_id).stdout
    assert "nothing to compare: digits and allreduce have no figure in common" in said


KILLED = """
import os, sys
from pathlib import Path
from gpubed.jobs.runs import record
folder, text = Path(sys.argv[1]), sys.argv[2]
with record.kept(folder, record.Record.model_validate_json(text)):
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_says_so(call, cluster, number):
    told = document(call("run", "lab", "digits", "--json"))
    done = record.read(cluster.runs / told["run_id"])
    folder = cluster.runs / "20990101-000000000-digits"
    folder.mkdir()
    begun = done.model_copy(update={"state": "running", "run_id": folder.name})
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), begun.model_dump_json(by_alias=True)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "runs\n"
    assert record.read(folder).state == "running"
    os.kill(process.pid, number)
    process.communicate()
    assert record.read(folder).state == "interrupted"


def test_a_failure_is_kept_with_its_reason(call, cluster, monkeypatch):
    def start(*_):
        raise GpubedError("node-1 went away", "gpubed status lab")

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    with pytest.raises(GpubedError, match="went away"):
        call("run", "lab", "digits")
    kept = record.find(cluster, "last")
    assert (kept.state, kept.failures) == ("failed", ("node-1 went away",))
    assert document(call("runs", "lab", "show", "last", "--json"))["changed_files"] == []


def test_differences_are_told_in_words(call, cluster):
    call("run", "lab", "digits")
    before = record.find(cluster, "last")
    request = Request(job="digits", settings={"batch": "64"}, choice=Choice(nodes=1))
    origin = before.origin.model_copy(update={"gpubed": "9"})
    now = Record.model_validate(
        {**before.model_dump(by_alias=True), "request": request, "origin": origin}
        | {"values": {**before.values, "batch": 64}}
    )
    said = [str(one) for one in compare.differences(before, now)]
    assert said == ["--set batch: 32 → 64", f"gpubed: {before.origin.gpubed} → 9"]
    assert compare.differences(before, before) == []


def edit(folder, **changes):
    """Change what a run's record says."""
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_prune_removes_what_it_looked_at_not_what_a_record_names(call, cluster):
    for _ in range(3):
        call("run", "lab", "digits")
    runs = sorted(cluster.runs.iterdir())
    edit(runs[0], run_id="../campaigns")
    (cluster.campaigns / "mine").mkdir(parents=True)
    kept = cluster.runs / "20200101-kept"
    shutil.copytree(runs[2], kept)
    done = call("runs", "lab", "prune", "--last", "1", "-y", "--json")
    assert document(done)["removed"] == [runs[1].name]
    assert (cluster.campaigns / "mine").is_dir()
    assert sorted(cluster.runs.iterdir()) == sorted([kept, runs[0], runs[2]])
    for left_out in (kept, runs[0]):
        assert str(left_out) in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 1e300},
        {"seconds": float("nan")},
        {"seconds": -1},
        {"world_size": 10**30},
        {"started": "0001-01-01T00:00:00+00:00"},
        {"started": "2026-01-01T00:00:00"},
    ],
)
def test_a_run_that_nobody_can_have_had_hides_no_other(call, cluster, changes):
    bad, good = (document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2))
    edit(cluster.runs / bad, **changes)
    assert call("runs", "lab").return_value == 0
    done = call("runs", "lab", "--json")
    assert f"{bad}/run.json cannot be read" in done.stderr
    assert [run["run_id"] for run in document(done)["runs"]] == [good]
    assert f"{good}: ok" in call("runs", "lab", "show", "last").stdout


def test_a_figure_without_bounds_is_shown(call, cluster):
    run = document(call("run", "lab", "digits", "--json"))["run_id"]
    edit(cluster.runs / run, metrics={"loss": 10**400, "images_per_s": 1e308})
    assert call("runs", "lab").return_value == 0
    assert call("runs", "lab", "show", "last").return_value == 0
    assert call("runs", "lab", "compare", "last", "last").return_value == 0


def test_the_order_is_that_of_time_whatever_the_names_say(call, cluster):
    """Names were in local time once: an hour in autumn has them twice."""
    first, second = (document(call("run", "lab", "digits", "--json"))["run_id"] for _ in range(2))
    edit(cluster.runs / first, started="2026-10-25T03:10:00+02:00")
    edit(cluster.runs / second, started="2026-10-25T00:50:00Z")
    told = call("runs", "lab", "show", "last").stdout
    assert told.startswith(f"{first}: ok")
    assert "started 2026-10-25 01:10:00 UTC" in told
    listed = document(call("runs", "lab", "--json"))["runs"]
    assert [run["run_id"] for run in listed] == [second, first]
    done = document(call("runs", "lab", "prune", "--last", "1", "-y", "--json"))
    assert done["removed"] == [second]


def test_runs_are_called_by_the_time_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")  # 14 hours ahead
    time.tzset()
    try:
        name = execution.name_run("digits")
    finally:
        monkeypatch.undo()
        time.tzset()
    told = datetime.strptime(name[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - told).total_seconds()) < 60


def sets(**metrics):
    """Return two sets of runs, by what each of a metric's two sets measured."""
    return [
        [SimpleNamespace(metrics=dict(zip(metrics, values, strict=True))) for values in rows]
        for rows in (zip(*(of[side] for of in metrics.values()), strict=True) for side in (0, 1))
    ]


def test_the_same_each_time_is_no_sample(call, cluster):
    """Repetitions have one seed, so what is computed from it has no spread to judge by."""
    [seen] = compare.ratios(
        [
            sets(
                test_accuracy=([0.9611] * 3, [0.9583] * 3),
                loss=([0.09] * 3, [0.09] * 3),
                world_size=([2, 2, 2], [2, 3, 2]),
                images_per_s=([100, 101, 102], [200, 201, 203]),
            )
        ]
    )
    verdicts = {one.metric: one.verdict for one in seen}
    assert verdicts == {
        "test_accuracy": "unknown: repetitions with one seed are no samples",
        "loss": "the same",
        "world_size": "unknown: repetitions with one seed are no samples",
        "images_per_s": "differs",
    }
    assert [one.low for one in seen[:3]] == [None] * 3


def test_settings_are_the_same_or_different():
    """What says how a run was made is known, and needs no repetitions to be judged."""
    figures = {
        "world_size": ([2, 2], [3, 3]),
        "threads_per_rank": ([1, 1], [1, 1]),
        "tuned_cycle_ms": ([1, 2], [3, 3]),
    }
    [seen] = compare.ratios([sets(**figures)], figures)
    verdicts = ["different", "the same", "unknown: repetitions with one seed are no samples"]
    assert [one.verdict for one in seen] == verdicts


def test_a_comparison_says_that_settings_differ_and_shows_p_in_a_narrow_terminal(call):
    one, two = (
        document(call("run", "lab", "digits", "--nodes", n, "--repeat", "3", "--json"))
        for n in "12"
    )
    names = [told["trials"][0]["run_id"] for told in (one, two)]
    said = call("runs", "lab", "compare", *names).stdout
    assert (
        next(line for line in said.splitlines() if "world_size" in line).split()[-1] == "different"
    )
    heading = next(line for line in said.splitlines() if "verdict" in line)
    assert heading.split()[-2:] == ["p", "verdict"]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.9, 1.2, "0.900 … 1.200"), (0.0001, 60967.2, "too few runs"), (None, None, "")],
)
def test_an_interval_that_tells_nothing_is_not_written(low, high, told):
    assert compare.bounds(low, high) == told


def test_it_is_said_for_how_many_comparisons_verdicts_are_corrected(call):
    names = [
        document(call("run", "lab", "digits", *words, "--repeat", "3", "--json"))["trials"][0]
        for words in ((), ("--nodes", "2"), ("--nodes", "1"))
    ]
    words = ("runs", "lab", "compare", *(one["run_id"] for one in names))
    told = document(call(*words, "--json"))["comparisons"]
    chances = [row["chance"] for pair in told for row in pair["metrics"] if row["chance"]]
    assert len(chances) == 2  # images_per_s of each pair: the other figures are always the same
    assert {one["count"] for one in chances} == {len(chances)}
    assert all(one["alone"] <= one["among"] for one in chances)
    assert (
        f"p and verdict are corrected for all {len(chances)} of them (Holm)" in call(*words).stdout
    )


def test_of_many_figures_that_do_not_differ_hardly_ever_one_seems_to():
    """Two sets of three runs each, and 20 figures of each, all of them noise."""
    alarms, alone, sets_ = 0, 0, 200
    for seed in range(sets_):
        chance = random.Random(seed)
        figures = {
            f"figure_{number}": tuple([chance.gauss(100, 3) for _ in range(3)] for _ in range(2))
            for number in range(20)
        }
        [seen] = compare.ratios([sets(**figures)])
        alarms += any(one.verdict == "differs" for one in seen)
        alone += any(one.chance.alone <= 0.05 for one in seen)
    assert alarms <= 10 + 6  # 5 % of 200, and luck
    assert alone > sets_ / 3, "without a correction, most families tell something"


def test_one_figure_that_differs_is_found_among_many_that_do_not():
    chance = random.Random(1)
    noise = {
        f"figure_{number}": tuple([chance.gauss(100, 1) for _ in range(3)] for _ in range(2))
        for number in range(20)
    }
    [seen] = compare.ratios([sets(images_per_s=([100, 101, 102], [150, 151, 152.5]), **noise)])
    assert [one.metric for one in seen if one.verdict == "differs"] == ["images_per_s"]


def test_the_means_beside_a_ratio_are_those_that_it_is_of():
    """With an outlier, arithmetic ones said "slower" beside a ratio that said "faster"."""
    [[rate]] = compare.ratios([sets(images_per_s=([345, 1970, 12244], [3900, 4200, 4569]))])
    assert rate.now / rate.before == pytest.approx(rate.ratio)
    assert rate.low < rate.ratio < rate.high
