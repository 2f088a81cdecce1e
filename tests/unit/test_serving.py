"""deploy.py writes what is to be served, and the controller starts and ends replicas by it."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.access import serving
from gpubed.cli.commands import serve
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets

TRACK = {"version": "1", "key": "old", "share": 100, "min": 1, "max": 1, "cpus": 2, "gpus": 0}
TRACK |= {"source": "", "target": "", "environment": "/env", "folder": "/files"}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The role's modules by name, with their folder in place of that on shared storage."""
    for folder in ("models", "state/replicas", "state/tracks", "state/logs"):
        (tmp_path / folder).mkdir(parents=True)
    settings = {"folder": str(tmp_path), "models": 16, "slots": 16, "addresses": {}}
    monkeypatch.setattr(Path, "read_text", _settings(json.dumps(settings), Path.read_text))
    monkeypatch.syspath_prepend(str(assets() / "roles/serving/files"))
    for name in ("gpubed_serving.controller", "gpubed_serving.deploy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name: importlib.import_module(f"gpubed_serving.{name}")


def _settings(text, read):
    mine = "/etc/gpubed/serving/settings.json"
    return lambda path, *a, **k: text if str(path) == mine else read(path, *a, **k)


class Slurm:
    """A queue that does what it is told; jobs begin at once, and end when a test says so."""

    def __init__(self, root):
        self.root, self.jobs, self.signals, self.asked = root, {}, [], []

    def run(self, program, *words):
        if program == "squeue":
            ended = any("--states" in word for word in words)
            rows = [row for row in self.jobs.values() if ("FAILED" in row) == ended]
            return "".join("|".join(row) + "\n" for row in rows)
        if program == "sbatch":
            told = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
            job = str(len(self.jobs) + 1)
            self.jobs[job] = [job, told["job-name"], told["comment"], "RUNNING", "None"]
        if program == "scancel":
            self.signals.append(words)
        if program == "tail":
            return Path(words[-1]).read_text()
        return ""

    def ready(self, job, **figures):
        figures = {"p50_s": None, "p99_s": None, "per_s": 0, "backlog": 0, "reason": "", **figures}
        where = {"time": 9e9, "address": "10.0.0.1", "port": 4000 + int(job)}
        (self.root / f"state/replicas/{job}.json").write_text(json.dumps(where | figures))

    def fail(self, job, words):
        self.jobs[job][3] = "FAILED"
        (self.root / f"state/logs/{job}.log").write_text(words)

    def proxy(self, *commands):
        self.asked += commands
        return ""


@pytest.fixture
def slurm(tmp_path, programs, monkeypatch):
    queue, controller = Slurm(tmp_path), programs("controller")
    monkeypatch.setattr(controller, "run", queue.run)
    monkeypatch.setattr(controller, "proxy", queue.proxy)
    return queue


def want(root, *tracks, revision=1):
    text = json.dumps({"revision": revision, "tracks": tracks, "previous": None})
    (root / "models/digits.json").write_text(text)


def look(controller, root):
    controller.look()
    return json.loads((root / "state/state.json").read_text())["models"]["digits"]


def test_requests_go_to_replicas_that_are_ready(tmp_path, programs, slurm):
    want(tmp_path, {**TRACK, "min": 2, "max": 2})
    controller = programs("controller").Controller()
    assert look(controller, tmp_path)["tracks"][0]["ready"] == 0
    assert sorted(slurm.jobs) == ["1", "2"]
    slurm.ready("2")
    assert not look(controller, tmp_path)["complete"]
    assert "set server m0/r0 addr 10.0.0.1 port 4002" in slurm.asked
    assert "set server m0/r1 state maint" in slurm.asked
    slurm.ready("1")
    assert look(controller, tmp_path)["complete"]
    assert "set server m0/r1 addr 10.0.0.1 port 4001" in slurm.asked
    assert "set server m0/r1 weight 128" in slurm.asked
    assert len(slurm.jobs) == 2


def test_a_version_that_fails_is_given_up_with_the_last_words_of_its_log(tmp_path, programs, slurm):
    want(tmp_path, TRACK)
    controller = programs("controller").Controller()
    for job in ("1", "2", "3"):
        look(controller, tmp_path)
        slurm.fail(job, "Traceback\nModuleNotFoundError: No module named 'mlflow'\n")
    track = look(controller, tmp_path)["tracks"][0]
    assert track["failed"]
    assert "job 3 ended: ModuleNotFoundError: No module named 'mlflow'" in track["reason"]
    assert f"{tmp_path}/state/logs/3.log" in track["reason"]
    assert len(slurm.jobs) == 3
    want(tmp_path, TRACK, revision=2)
    assert not look(controller, tmp_path)["tracks"][0]["failed"]
    assert len(slurm.jobs) == 4


def test_the_former_version_goes_on_until_the_new_one_is_ready(tmp_path, programs, slurm):
    want(tmp_path, TRACK)
    controller = programs("controller").Controller()
    look(controller, tmp_path)
    slurm.ready("1")
    want(tmp_path, {**TRACK, "key": "new"}, revision=2)
    assert look(controller, tmp_path)["former"] == ["1"]
    assert slurm.signals == []
    slurm.ready("2")
    assert look(controller, tmp_path)["complete"]
    assert slurm.signals == [("--batch", "--signal=TERM", "1")]
    assert "set server m0/r0 state drain" in slurm.asked
    del slurm.jobs["1"]
    assert look(controller, tmp_path)["former"] == []
    assert not (tmp_path / "state/replicas/1.json").exists()


def test_a_backlog_brings_a_replica_and_its_end_takes_one(tmp_path, programs, slurm, monkeypatch):
    clock = SimpleNamespace(time=lambda: clock.now, now=0.0)
    monkeypatch.setattr(programs("controller"), "time", clock)
    want(tmp_path, {**TRACK, "max": 2})
    controller = programs("controller").Controller()

    def number(job, backlog, now):
        clock.now = now
        slurm.ready(job, backlog=backlog)
        return look(controller, tmp_path)["tracks"][0]["replicas"]

    look(controller, tmp_path)
    assert [number("1", 200, now) for now in (0.0, 4.0, 6.0)] == [1, 1, 2]
    assert [number("1", 0, now) for now in (10.0, 69.0, 71.0)] == [2, 2, 1]


REQUEST = {"action": "serve", "model": "digits", "version": "2", "canary": 0, "min": 1, "max": 1}
REQUEST |= {"cpus": 1, "gpus": 0, "source": "", "target": ""}


@pytest.fixture
def deploy(programs, monkeypatch):
    """Its program, where any version is registered and Slurm has room for two CPUs."""
    program = programs("deploy")
    found = {"version": "2", "folder": "/files", "environment": "/env"}
    monkeypatch.setattr(program, "_registered", lambda *_: found)
    monkeypatch.setattr(program.shutil, "copyfile", lambda *_: None)

    def sbatch(words, **_):
        fits = "--cpus-per-task=99" not in words
        said = "" if fits else "sbatch: error: Requested node configuration is not available\n"
        return subprocess.CompletedProcess(words, not fits, "", said)

    monkeypatch.setattr(program.subprocess, "run", sbatch)
    return program


@pytest.mark.parametrize(
    ("given", "kept"), [({}, "images"), ({"source": "more", "target": "other"}, "more")]
)
def test_a_canary_scores_the_stream_that_is_scored(tmp_path, deploy, given, kept):
    want(tmp_path, {**TRACK, "source": "images", "target": "scored"})
    assert deploy._changed({**REQUEST, "canary": 10, **given}) == 2
    tracks = json.loads((tmp_path / "models/digits.json").read_text())["tracks"]
    assert [track["source"] for track in tracks] == ["images", kept]
    assert [track["share"] for track in tracks] == [90, 10]


def test_what_no_node_can_hold_is_refused_with_slurms_words(tmp_path, deploy):
    want(tmp_path, TRACK)
    with pytest.raises(deploy.Refused, match="Requested node configuration is not available"):
        deploy._changed({**REQUEST, "cpus": 99})
    assert json.loads((tmp_path / "models/digits.json").read_text())["revision"] == 1


def test_a_hint_names_what_can_be_served(deploy):
    def hint(name, **models):
        client = SimpleNamespace(
            search_registered_models=lambda: [
                SimpleNamespace(name=model, aliases={"best": "2"}) for model in models
            ],
            search_model_versions=lambda: [
                SimpleNamespace(name=model, version=version)
                for model, versions in models.items()
                for version in versions
            ],
        )
        return deploy._there(client, name)

    assert hint("digits", digits=["10", "2"]) == "there are digits@2, digits@10, digits@best"
    assert hint("other", digits=["1"], more=["1"]) == "registered models: digits, more"
    assert "run CLUSTER digits" in hint("other")


def test_a_model_that_waits_is_told_with_whole_commands(monkeypatch):
    track = {**TRACK, "replicas": 1, "ready": 0, "p50_s": None, "p99_s": None, "per_s": 0}
    track |= {"backlog": 0, "waits": "Resources", "reason": "", "failed": False}
    model = {"revision": 1, "complete": False, "former": [], "tracks": [track]}
    state = serving.State.model_validate({"time": 0, "models": {"digits": model}})
    monkeypatch.setattr(serving, "state", lambda *_: state)
    ticks = iter(range(0, 1000, 31))
    monkeypatch.setattr(
        serve, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _: None)
    )
    with pytest.raises(GpubedError, match="waits in Slurm's queue") as told:
        serve._await(SimpleNamespace(name="lab"), None, "digits", 1)
    assert told.value.hint.endswith("gpubed ssh lab head -- squeue")
