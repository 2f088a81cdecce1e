"""A run that fails: its own words stand at the end, not those of the program that started it."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.jobs import execution, launchers, leftovers
from gpubed.jobs.causes import End
from gpubed.jobs.rank_output import RankOutput
from support.samples import granted_cluster
from support.stand_in_head import Head

RANKS = [
    "[0]<stdout>:3 ranks: 20 epochs",
    "[2]<stderr>:Traceback (most recent call last):",
    '[2]<stderr>:  File "main.py", line 7, in <module>',
    "[2]<stderr>:ValueError: no such optimizer",
    "[0]<stderr>:another rank is gone",
]
# As `horovodrun` of Horovod 0.28 ends.
LAUNCHER = [
    "Traceback (most recent call last):",
    '  File "/opt/gpubed/bin/horovodrun", line 8, in <module>',
    "    sys.exit(run_commandline())",
    "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus "
    "causing the job to be terminated. The first process to do so was:",
    "Process name: 2",
    "Exit code: 2",
    "",
]


def read(lines):
    output = RankOutput(3)
    return output, [shown for line in lines if (shown := output.read(line)) is not None]


def test_the_rank_that_failed_first_has_the_last_word():
    output, shown = read([*RANKS, *LAUNCHER])
    assert shown[0] == "rank 0: 3 ranks: 20 epochs"
    assert shown[-1] == "rank 0: another rank is gone"
    assert cause(output, ["node-0", "node-0", "node-1"]) == (
        "rank 2 on node-1: ValueError: no such optimizer (main.py:7)"
    )
    assert output.last_words[-1] == "ValueError: no such optimizer"
    assert "another rank is gone" not in output.last_words


def cause(output, nodes, **ends):
    """The message of the cause, empty if there is none."""
    found = output.cause(nodes, {int(rank[1:]): End(**end) for rank, end in ends.items()})
    return found.message if found else ""


# What it prints as ranks end, before its traceback.
NODES = ["node-0", "node-0", "node-1"]


@pytest.mark.parametrize(
    ("code", "said", "lost"),
    [
        ("255", "Connection to node-1 closed by remote host.", True),
        ("255", "Timeout, server 10.0.0.7 not responding.", True),
        ("255", "ssh: connect to host node-1 port 22: No route to host", True),
        ("255", "ValueError: no such optimizer", False),
        ("1", "Connection to node-1 closed by remote host.", False),
    ],
)
def test_a_rank_that_went_with_its_node_did_not_end_by_itself(code, said, lost):
    told = [f"[2]<stderr>:{said}", "[2]<stderr>:", *LAUNCHER[:-2], f"Exit code: {code}", ""]
    output, _ = read(told)
    assert output.lost_its_node == lost
    assert output.last_words == [said], "a line without a word is none"
    assert cause(output, NODES) == (
        "node-1 or the connection to it was lost, and rank 2 with it"
        if lost
        else f"rank 2 on node-1 {ends(code)}" + f"; its last line: {said}" * (code == "1")
    )


def ends(code):
    killed = "was killed, or ended with exit code 255: SSH reports both alike"
    return killed if code == "255" else f"ended with exit code {code}"


@pytest.fixture
def lines():
    """What the job and its launcher print."""
    return [*RANKS, *LAUNCHER]


@pytest.fixture
def run(tmp_path, monkeypatch, lines):
    def start(_cluster, _launch, say):
        for line in lines:
            say(line)
        return 1

    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    cluster = granted_cluster(tmp_path)
    monkeypatch.setattr(Head, "metrics", {})
    monkeypatch.setattr(execution, "SSH", Head)
    monkeypatch.setattr(leftovers, "end", lambda *_: [])
    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    monkeypatch.setattr(health, "usable", lambda cluster: (cluster, []))
    words = ["run", "lab", "digits"]
    return lambda *more: (
        CliRunner().invoke(cli.build(), [*words, *more], standalone_mode=False),
        next(cluster.runs.iterdir()) / "output.log",
    )


@pytest.mark.process
def test_a_terminal_ends_with_the_ranks_own_words(run):
    done, log = run()
    assert done.return_value == 1
    *_, last, error = done.stderr.splitlines()
    assert last == "  ValueError: no such optimizer"
    assert error.startswith(
        "error: rank 2 on node-2: ValueError: no such optimizer (main.py:7); see "
    )
    assert "horovodrun" not in done.stderr
    assert log.read_text().splitlines() == [*RANKS, *LAUNCHER], "there, all stays as it was said"


@pytest.mark.process
def test_a_node_that_went_is_said_with_what_brings_it_back(run, lines):
    lines[:] = [
        "[2]<stderr>:Connection to node-2 closed by remote host.",
        *LAUNCHER[:-2],
        "Exit code: 255",
    ]
    *_, error, hint = run()[0].stderr.splitlines()
    assert error.startswith("error: node-2 or the connection to it was lost, and rank 2 with it")
    assert hint.strip().startswith("→ gpubed up lab brings it back; docs/how-to/outlive-nodes.md")
