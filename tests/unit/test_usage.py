"""What a cluster is used for, as its nodes say together and as people read it.

What nodes answer is a STAND-IN's.
"""

import json

import pytest

from gpubed.cli import status_view
from gpubed.cli.ui import UI
from gpubed.configuration import usage
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds import specification
from support.sessions import answering

ALICE = {"user": "alice", "job": "run-1", "cpu_s": 60.0, "gpu_s": 0.0, "held_s": 7200.0}


def said(idle_s, who="alice", what="a terminal", rows=(), **more):
    last = {"who": who, "what": what}
    node = {"idle_s": idle_s, "spell": f"s{idle_s}", "last": last, "use": list(rows)}
    return json.dumps({**node, "gpus": 2, "mute": [], **more})


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """A function from what nodes answer to what the cluster is used for."""

    def ask(*answers, **spec):
        plan, granted = answering(monkeypatch, usage, answers, **spec)
        return usage.look(Cluster(ClusterPaths(Project(tmp_path), "lab"), plan, granted))

    return ask


def test_a_cluster_is_idle_as_long_as_its_last_used_node(ask):
    found = ask(said(7200, rows=[ALICE]), said(600, "bob", "a notebook", rows=[ALICE]))
    assert (found.idle_s, found.why) == (600, "bob: a notebook on node-1")
    assert found.document() == {
        "idle_s": 600,
        "why": "bob: a notebook on node-1",
        "gpus": 4,
        "rows": [{**ALICE, "cpu_s": 120.0, "held_s": 14400.0}],
    }
    assert found.spell != ask(said(7200), said(601, "bob", "a notebook")).spell


def test_nodes_are_told_which_logins_are_gpubeds_own_and_when_that_is_over():
    said = []

    class Session:
        """STAND-IN for a session with a node: the second one does not answer."""

        def __init__(self, name):
            self.name = name

        def run(self, command, *, check):
            said.append((self.name, command))
            if self.name == "gone":
                raise Unreachable("no answer")

    with usage.own([Session("there"), Session("gone")]):
        assert sorted(said) == [(n, "sudo -n gpubed-use own") for n in ("gone", "there")]
        said.clear()
    assert said == [("there", "sudo -n gpubed-use disown")], "nobody waits for the other again"


def read(capsys, document):
    ui = UI()
    ui.err = ui.out
    status_view._use(ui, document)
    return capsys.readouterr().out


def test_status_says_since_when_and_who_holds_what_for_nothing(ask, capsys):
    jupyter = {**ALICE, "user": "jupyter", "job": "", "cpu_s": 5.0, "held_s": 0.0}
    text = read(capsys, ask(said(7200, rows=[ALICE, jupyter])).document())
    assert "idle for 2 h; the last use was alice: a terminal on node-0" in text
    assert [line.split() for line in text.splitlines() if "run-1" in line] == [
        ["alice", "run-1", "2", "h", "0", "s", "1", "min"]
    ]
    assert "nodes look each minute: shorter runs, and the last minute of others" in text
    assert "jupyter" not in text, "what an idle service takes is not worth a row"
    assert read(capsys, ask(said(30)).document()) == "in use: alice: a terminal on node-0\n"
    text = read(capsys, ask(said(232)).document())
    assert text == "idle for 4 min; the last use was alice: a terminal on node-0\n"
    assert read(capsys, None) == ""


LOCAL = "{type: local}"
STATIC = "{type: static, user: me, hosts: {node: [{address: a}]}}"
GPULAB = "{type: gpulab, certificate: a.pem, project: p, image: i}"


@pytest.mark.parametrize(
    ("backend", "idle", "rest", "said"),
    [
        (LOCAL, "{after: 2 h, then: release}", "", None),
        (STATIC, "{after: 2 h}", "", None),
        (STATIC, "{after: 2 h, then: release}", "", "are your own"),
        (GPULAB, "{after: 2 h}", "", "backend gpulab lends no nodes"),
        (LOCAL, "{after: 2 h}", "configure: false\n", "bare nodes do not tell"),
        (LOCAL, "{after: 1 min}", "", "at least 10 min"),
        (LOCAL, "{after: 2 h, warning: 1 s}", "", "at least 5 min"),
        (LOCAL, "{then: release}", "", "is missing"),
    ],
)
def test_a_care_that_cannot_be_is_refused_with_its_line(tmp_path, backend, idle, rest, said):
    path = tmp_path / "lab/cluster.yml"
    path.parent.mkdir()
    text = f"version: 1\nbackend: {backend}\nnodes: [{{count: 1}}]\nlease:\n  idle: {idle}\n{rest}"
    path.write_text(text)
    errors = [error for error in specification.check(path)[1] if "idle" in error.path]
    assert [error.line for error in errors] == ([] if said is None else [5])
    if said:
        assert said in str(errors[0])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no such command; repair: gpubed configure lab --tags health"),
        ("{}", "gpubed-use fails"),
        (said(-1.0), "gpubed-use fails"),
        (Unreachable("node-1 does not answer"), "node-1 does not answer"),
    ],
)
def test_what_cannot_be_asked_counts_as_used(ask, answer, why):
    found = ask(said(7200), answer)
    assert found.idle_s == 0
    assert why in found.why
