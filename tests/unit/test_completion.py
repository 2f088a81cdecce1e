"""The tab key: what the shell is offered, in a project of its own."""

import os
import shlex
import subprocess
import sys

import pytest
import typer.main

from gpubed import cli
from gpubed.core.paths import Project
from gpubed.jobs.runs import record
from gpubed.spec import backend_config
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def offered(tmp_path, monkeypatch, capsys):
    """A function that returns what is offered after some words."""
    paths = Project(tmp_path).cluster("lab")
    for folder in (paths.spec.parent, paths.state, tmp_path / "jobs" / "mine"):
        folder.mkdir(parents=True)
    paths.spec.touch()
    paths.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    (tmp_path / "jobs" / "mine" / "job.yml").touch()
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setenv("_GPUBED_COMPLETE", "complete_bash")
    command = typer.main.get_command(cli.build())

    def complete(line):
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            command.main([], prog_name="gpubed")
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpubed stat", ["status"]),
        ("gpubed status ", ["lab"]),
        ("gpubed doctor ", ["lab"]),
        ("gpubed run lab d", {"digits"}),
        ("gpubed run lab mi", ["mine"]),
        (
            "gpubed run lab digits --set ",
            ["epochs=", "batch=", "learning_rate=", "seed=", "dataset=", "register="],
        ),
        ("gpubed run lab digits --set ep", ["epochs="]),
        ("gpubed run lab allreduce --set sizes=", ["sizes=all", "sizes=largest"]),
        ("gpubed run lab nothing --set ", []),
        ("gpubed run lab mine --set ", []),
        ("gpubed run lab digits --launcher ", {"gpulab", "slurm", "ssh"}),
        ("gpubed bench lab sm", ["smoke"]),
        ("gpubed bench lab im", ["imagenet-gpu", "imagenet-gpulab", "imagenet-scaling"]),
        ("gpubed ssh lab n", ["node-0", "node-1", "node-2"]),
        ("gpubed ssh lab h", ["head"]),
        ("gpubed ssh other n", []),
        ("gpubed health lab --quarantine node-2", ["node-2"]),
        ("gpubed health lab --requalify node-2", ["node-2"]),
        ("gpubed init new --backend ", list(backend_config.types())),
        ("gpubed up lab --engine ", ["cli", "embedded"]),
        ("gpubed run lab digits --on ", ["head", "node-0", "node-1", "node-2"]),
        ("gpubed run lab digits --on node-0,", ["node-0,node-1", "node-0,node-2"]),
        ("gpubed run lab digits --on head,n", ["head,node-1", "head,node-2"]),
        (
            "gpubed run lab digits --on node-1,",
            [f"node-1,{n}" for n in ("head", "node-0", "node-2")],
        ),
        ("gpubed ssh lab/ h", ["head"]),
        ("gpubed export lab r", ["rspec"]),
        ("gpubed recipe show cp", {"cpu"}),
    ],
)
def test_the_tab_key_offers(offered, line, words):
    """Of what anybody may add to, a set is what there is at least."""
    if isinstance(words, set):
        assert words <= set(offered(line))
    else:
        assert offered(line) == words


def test_a_report_is_of_what_was_measured_on_the_cluster(offered, tmp_path):
    for name in ("smoke", "scaling"):
        folder = Project(tmp_path).cluster("lab").campaigns / name
        folder.mkdir(parents=True)
        (folder / "campaign.json").touch()
    assert offered("gpubed report lab ") == ["scaling", "smoke"]
    assert offered("gpubed report lab sm") == ["smoke"]
    assert offered("gpubed report other ") == []
    assert offered("gpubed report lab --with l") == ["lab"]
    assert offered("gpubed report other --with lab/s") == ["lab/scaling", "lab/smoke"]


def ended(name, job, values, state):
    told = dict.fromkeys(
        ("cluster", "uuid", "gpubed", "recipe", "recipe_sha256", "spec_sha256", "job_sha256"), "x"
    )
    return record.Record(
        run_id=name,
        request=record.Request(job=job),
        origin=record.Origin(**told),
        command=(),
        values=values,
        world_size=3,
        started=record.now(),
        state=state,
    )


def test_what_cannot_go_on_is_not_offered_to(offered, tmp_path):
    """One that came to its end, one at work, and one of a job that keeps no checkpoints."""
    runs = Project(tmp_path).cluster("lab").runs
    kept = {"checkpoint": "mine"}
    for number, (job, values, state) in enumerate(
        [
            ("imagenet", kept, "ok"),
            ("imagenet", kept, "interrupted"),
            ("imagenet", {"checkpoint": ""}, "failed"),
            ("digits", {}, "failed"),
            ("imagenet", kept, "failed"),
        ]
    ):
        name = f"20260101-00000{number}-{job}"
        (runs / name).mkdir(parents=True)
        record.write(runs / name, ended(name, job, values, state))
    names = ["20260101-000004-imagenet", "20260101-000001-imagenet"]
    assert offered("gpubed run lab --resume ") == ["last", *names]
    assert len(offered("gpubed run lab --again ")) == 6


@pytest.fixture
def in_bash(offered, tmp_path):
    """A function that returns what bash is told behind some words, by the script itself."""
    program = tmp_path / "bin" / "gpubed"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom gpubed import cli\ncli.main()\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    known = {name: value for name, value in os.environ.items() if name != cli.COMPLETE}
    known |= {"PATH": path, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

    def run(*words):
        return subprocess.run(words, env=known, capture_output=True, text=True, check=True).stdout

    script = run("gpubed", "--show-completion", "bash")
    # bash has `compopt` only while somebody presses the key: a STAND-IN says what it was asked.
    asks = 'compopt() { echo compopt "$@"; }'

    def complete(*words):
        given = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}"
        told = f"{asks}; _gpubed_completion gpubed; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return run("bash", "-c", f"{script}\n{given}\n{told}").splitlines()

    return complete


@pytest.mark.process
@pytest.mark.parametrize("verb", ["status"])
def test_bash_offers_clusters_where_nothing_is_typed_yet(in_bash, verb):
    assert in_bash("gpubed", verb, "") == ["lab"]


@pytest.mark.process
def test_bash_leaves_no_room_between_a_setting_and_its_value(in_bash):
    words = ("gpubed", "run", "lab", "digits", "--set")
    assert in_bash(*words, "ep") == ["compopt -o nospace", "epochs="]
    assert in_bash("gpubed", "run", "lab", "digi") == ["digits"]
