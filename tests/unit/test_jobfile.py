"""A job's description and its arguments: what is wrong is said in words, before anything starts."""

import argparse
import json

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.ui import UI
from gpubed.configuration import health
from gpubed.core.errors import GpubedError, UsageError
from gpubed.jobs import job_result, jobfile
from gpubed.jobs.job_result import JobResult
from support.samples import granted_cluster

WHOLE = {
    "schema": "gpubed/job/1",
    "description": "for tests",
    "launcher": "ssh",
    "command": ["python", "main.py"],
    "arguments": {"epochs": {"default": 20, "help": "passes"}},
    "metrics": {"accuracy": {"unit": "1"}},
    "sanity": [{"metric": "accuracy", "at_least": 0.9}],
}


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A function that loads a job whose description has other keys than `WHOLE`."""
    monkeypatch.setattr(jobfile, "folder", lambda _: tmp_path)

    def load(**changes):
        text = changes.pop("text", None) or yaml.safe_dump({**WHOLE, **changes}, sort_keys=False)
        (tmp_path / "job.yml").write_text(text)
        return jobfile.load("own")

    return load


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text": "schema: [gpubed"}, r"job\.yml cannot be read: line 1"),
        ({"colour": "red"}, r"line \d+: colour: unknown key"),
        ({"command": "python main.py"}, r"line 4: command: must be a list"),
        ({"arguments": {"a": {"type": "int", "default": "x", "help": ""}}}, "not a whole number"),
        (
            {"arguments": {"a": {"default": "x", "choices": ["y", "z"], "help": ""}}},
            "'x' is not one of y, z",
        ),
        ({"arguments": {"a": {"required": True, "default": 1, "help": ""}}}, "has no default"),
        ({"arguments": {"a": {"default": "x", "at_least": 1, "help": ""}}}, "need `type: int`"),
        (
            {"text": 'schema: gpubed/job/1\ncommand: ["a\\0"]\n'},
            r"line 2: the text 'a\\x00' has a NUL character",
        ),
        ({"command": [""]}, r"line 4: command: its first word, the program, is empty"),
        (
            {"arguments": {"a": {"type": "bool", "resumes": True, "help": ""}}},
            "resumes and dataset need `type: str`",
        ),
        (
            {"arguments": {name: {"resumes": True, "help": ""} for name in "ab"}},
            r"line 7: arguments: only one argument may have `resumes: true`: a, b",
        ),
        (
            {"arguments": {"a": {"type": "int", "at_least": 3, "at_most": 2, "help": ""}}},
            r"at_least \(3\) is more than at_most \(2\)",
        ),
        (
            {"sanity": [{"metric": "accuracy", "at_least": float("nan")}]},
            r"sanity\.0\.at_least: must be a finite number",
        ),
        ({"launcher": "ssj"}, r"line 3: launcher: there is no launcher 'ssj'; did you mean 'ssh'"),
        ({"sanity": [{"metric": "acuracy"}]}, "did you mean 'accuracy'"),
        (
            {"sanity": [{"metric": "accuracy", "from_arguments": {"epoch": 2}}]},
            "no argument 'epoch'",
        ),
    ],
)
def test_a_faulty_description_is_named_with_its_line(described, changes, says):
    with pytest.raises(GpubedError, match=says) as refused:
        described(**changes)
    assert refused.value.exit_code == 2
    assert refused.value.hint.startswith("correct ")


def test_all_that_is_wrong_is_named_at_once_each_with_its_line(described):
    with pytest.raises(GpubedError) as refused:
        described(
            text="""schema: gpubed/job/1
description: for tests
launchr: ssh
command: [python, main.py]
arguments:
  epochs: {defautl: 300, help: passes}
  batch: {default: [1], help: images}
metrics:
  accuracy: {unit: "1"}
sanity:
  - {metric: accuracy, at_least: 0.9}
  - metric: acuracy
    at_least: 0.9
"""
        )
    assert refused.value.message.partition(" has ")[2].splitlines() == [
        "4 errors:",
        "  line 3: launchr: unknown key (did you mean 'launcher'?)",
        "  line 6: arguments.epochs.defautl: unknown key (did you mean 'default'?)",
        "  line 7: arguments.batch.default: must be true or false, or must be a whole number, or "
        "must be a number, or must be a text",
        "  line 12: sanity.1: there is no metric 'acuracy'; did you mean 'accuracy'?",
    ]


@pytest.mark.parametrize(
    ("job", "given", "says"),
    [
        ("digits", "batch=abc", "--set batch=abc: 'abc' is not a whole number"),
        ("digits", "epoch=3", "job digits has no argument 'epoch'"),
        ("allreduce", "sizes=big", "'big' is not one of all, largest"),
        ("prepare", "quality=101", "101 is more than 100"),
        ("stage", "streams=4", "job stage needs dataset"),
        ("imagenet", "dataset=/etc", "'/etc' leads out of the cluster's datasets"),
        ("stage", "dataset=../runs", "'../runs' leads out of the cluster's datasets"),
        ("imagenet", "checkpoint=a\udcff", "is not UTF-8 text (character 2)"),
        ("imagenet", "checkpoint=c1/../c2", "leads out of the folder of checkpoints"),
        ("imagenet", "checkpoint=", "'' is the folder of all checkpoints"),
        ("imagenet", f"checkpoint={'a' * 256}", "too long: 256 bytes"),
    ],
)
def test_a_wrong_argument_ends_before_anything_starts(tmp_path, monkeypatch, job, given, says):
    paths = granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(health, "usable", lambda *_: pytest.fail("nodes were asked"))
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(
            cli.build(),
            ["run", "lab", job, "--set", given],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert says in refused.value.message
    assert refused.value.hint
    assert not paths.runs.exists()


@pytest.mark.parametrize(
    ("epochs", "status", "not_judged"), [("3", "ok", ["test_accuracy"]), ("20", "failed", [])]
)
def test_a_run_says_what_was_not_judged(tmp_path, epochs, status, not_judged):
    (tmp_path / "metrics.json").write_text('{"test_accuracy": 0.9, "world_size": 2}')
    result, digits = JobResult("digits", str(tmp_path), 2), jobfile.load("digits")
    job_result.judge(result, digits, digits.values("digits", {"epochs": epochs}))
    assert (result.status, result.not_judged) == (status, not_judged)
    assert result.document()["not_judged"] == not_judged


@pytest.mark.parametrize(
    ("written", "says", "kept"),
    [
        ('"loss": NaN', "loss is nan instead of a number", {"loss": None}),
        ('"loss": -Infinity', "loss is -inf instead of a number", {"loss": None}),
        ('"own": Infinity', "own is inf instead of a number", {"own": None}),
        ('"test_accuracy": true', "test_accuracy is True instead of a number", None),
        ('"loss": "0.1"', "loss is '0.1' instead of a number", None),
        (r'"a\n  world_size = 9": 1', r"'a\n  world_size = 9' is no valid name of a metric", {}),
        ('"loss": null, "device": "cpu"', "", {"loss": None, "device": "cpu"}),
        ('"rows": [{"s": NaN}]', "", {"rows": [{"s": None}]}),
    ],
)
def test_figures_are_numbers_and_names_are_one_line(tmp_path, written, says, kept):
    (tmp_path / "metrics.json").write_text(f'{{"world_size": 2, "test_accuracy": 1, {written}}}')
    result, digits = JobResult("digits", str(tmp_path), 2), jobfile.load("digits")
    job_result.judge(result, digits, digits.values("digits", {"epochs": "20"}))
    assert result.failures == [says] * bool(says)
    if kept is not None:
        assert result.metrics == {"world_size": 2, "test_accuracy": 1, **kept}


def test_gpubed_s_own_keys_are_its_own(tmp_path, capsys):
    names = ("schema", "exit_code", "status", "trials", "left_out")
    (tmp_path / "metrics.json").write_text(json.dumps(dict.fromkeys(names, "forged") | {"own": 1}))
    result, digits = JobResult("digits", str(tmp_path), 2), jobfile.load("digits")
    job_result.judge(result, digits, digits.values("digits", {"epochs": "3"}))
    UI(as_json=True).document("run", result.document())
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "gpubed/run/1"
    assert (told["status"], told["own"]) == ("failed", 1)
    assert not {"exit_code", "trials", "left_out"} & told.keys()
    assert told["metrics"]["exit_code"] == "forged"


@pytest.mark.parametrize(
    ("condition", "metrics", "says"),
    [
        ({"metric": "world_size", "equals": "ranks"}, {"world_size": 2}, "2 instead of 3"),
        ({"metric": "world_size", "equals": "ranks"}, {"world_size": 3}, ""),
        ({"metric": "accuracy", "at_least": 0.97}, {"accuracy": 0.9}, "at least 0.97"),
        ({"metric": "error", "at_most": 0.05}, {"error": 0.1}, "at most 0.05"),
        ({"metric": "error", "at_most": 0.05}, {}, "not reported"),
        ({"metric": "error", "at_most": 0.05}, {"error": None}, ""),
        ({"metric": "accuracy", "at_least": 0.97}, {"accuracy": float("nan")}, "at least 0.97"),
    ],
)
def test_a_condition_says_how_it_is_broken(condition, metrics, says):
    broken = jobfile.Condition.model_validate(condition).broken_by(metrics, ranks=3)
    assert says in broken
    assert bool(broken) == bool(says)


def test_settings_of_a_job_are_name_and_value():
    assert jobfile.parse_settings(["learning-rate=0.1", "epochs=2"]) == {
        "learning_rate": "0.1",
        "epochs": "2",
    }
    with pytest.raises(UsageError):
        jobfile.parse_settings(["epochs"])


@pytest.mark.parametrize("given", ["-0.00001", "1E-05", "0.30", "5"])
def test_arguments_reach_the_program_as_they_were_written(given):
    kinds = {"rate": ("float", float), "name": ("str", str), "on": ("bool", str)}
    arguments = {name: {"type": kind, "help": ""} for name, (kind, _) in kinds.items()}
    job = jobfile.Job.model_validate({**WHOLE, "arguments": arguments})
    words = job.words("own", {"rate": given, "name": "-foo", "on": "True"})
    assert words == ["python", "main.py", f"--rate={given}", "--name=-foo", "--on=true"]
    parser = argparse.ArgumentParser()
    for name, (_, kind) in kinds.items():
        parser.add_argument(f"--{name}", type=kind)
    read = parser.parse_args(words[2:])
    assert (read.rate, read.name, read.on) == (float(given), "-foo", "true")
