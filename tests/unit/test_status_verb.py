"""What a person reads of `gpubed status`: what is wrong first, skipped checks as a number."""

import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli import status_view
from gpubed.cli.ui import UI
from gpubed.cluster import probe, status
from gpubed.core import runlock, secret
from gpubed.core.errors import Locked
from gpubed.engines import stack
from gpubed.nodes import allocation
from support.samples import granted_cluster


def check(id_, result, reason="", node="node-0"):
    return {
        "id": id_,
        "node": node,
        "result": result,
        "reason": reason,
        "value": None,
        "unit": "",
        "limit": "",
    }


CHECKS = [
    check("ssh.mesh", "pass"),
    check("link.rate", "fail", "too slow"),
    *(check(f"gpu.{number}", "skip", "the node has no GPU") for number in range(23)),
]


JUPYTERLAB = {"name": "jupyterlab", "url": "https://10.0.0.1:8888/", "reason": ""}
UNWELL = {"state": "quarantined", "reason": "fan is loud"}


def document(state="ready", worker=(), configured=True):
    row = {
        "state": "ready",
        "reason": "",
        "role": "worker",
        "hardware": None,
        "control_address": "10.0.0.2",
        "experiment_address": "10.1.0.2",
    }
    summary = {"age_s": 180.0, "passed": 1, "failed": 1, "skipped": 23, "simulated": 0}
    verification = {**summary, "checks": CHECKS, "current": True}
    return {
        "state": state,
        "nodes": [
            row | {"name": "node-0", "role": "head"},
            row | {"name": "node-1", **dict(worker)},
        ],
        "failed": [],
        "lease": {"granted_until": None, "remaining_s": None},
        "stopped": [],
        "reshaped": False,
        "unreadable": [],
        "held_by": None,
        "configured": configured,
        "services": [JUPYTERLAB] if configured else [],
        "pending": [],
        "verification": verification,
    }


@pytest.fixture
def read(capsys):
    """A function that returns the lines that a person reads, in their order."""

    def lines(*given, **options):
        ui = UI()
        ui.err = ui.out  # both are the same terminal
        status_view.cluster(ui, "lab", *given, **options)
        return capsys.readouterr().out.splitlines()

    return lines


def test_skipped_checks_are_counted(read):
    lines = read(document())
    assert not [line for line in lines if "the node has no GPU" in line]
    [total] = [line for line in lines if line.startswith("verified")]
    assert total == "verified 3 min ago: 1 passed, 1 failed, 23 skipped"


def test_who_is_at_work_on_the_cluster_is_named(read):
    """Its nodes may be ready while an `up` still verifies them."""
    holder = {"verb": "up", "pid": 7, "user": "ada", "host": "here", "since": "today"}
    first, second, *_ = read({**document(), "held_by": holder})
    assert first == (
        "- `gpubed up` (pid 7, user ada, since today) is at work: what is shown here may change"
    )
    assert second.strip() == "✓ lab is ready"


def test_what_is_wrong_comes_first_and_says_what_ends_it(read):
    lines = read(document("degraded", UNWELL))
    assert lines[0].strip() == "✗ node-1 is quarantined, so jobs leave it out: fan is loud"
    assert lines[1] == "when it is repaired: gpubed health lab --requalify node-1"
    assert next(n for n, line in enumerate(lines) if line.split()[:1] == ["node"]) > 1


MUTE = "it cannot tell; repair: gpubed configure lab --tags health"


def test_after_an_interruption_one_remedy_is_named(read):
    """What lacks for want of roles is no fault of its own: `up` goes on with them."""
    wrong = {"state": "failing", "reason": MUTE}
    service = {**JUPYTERLAB, "reason": "JupyterLab is not set up yet"}
    use = {"rows": [], "idle_s": 0, "why": f"not all could be asked: {MUTE}"}
    state = {"state": "interrupted", "services": [service], "use": use}
    lines = read({**document("interrupted", wrong), **state})
    assert [line for line in lines if "gpubed" in line] == [
        "✗ the last configuration did not come to its end: gpubed up lab goes on with it"
    ]
    assert not [line for line in lines if "jupyterlab" in line.lower()]


def test_there_is_no_address_of_a_service_that_does_not_answer(read):
    service = {**JUPYTERLAB, "reason": "JupyterLab does not answer: timed out"}
    lines = read(ui_document(services=[service]))
    assert "✗ JupyterLab does not answer: timed out" in lines
    assert not [line for line in lines if "https://" in line]


STOPPED = "✗ munge.service on node-1 is failed"


def ui_document(**changes):
    return {**document("degraded"), **changes}


@pytest.fixture
def broken_state(tmp_path, monkeypatch):
    """A cluster whose nodes are well, and whose state was cut short."""
    paths = granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths.project.prepare()
    secret.ensure_key(paths.private_key)
    stack.Stack(paths, "embedded").init()
    [file] = paths.project.pulumi.glob(".pulumi/stacks/*/lab.json")
    whole = lambda *_: probe.Condition({f"node-{n}": "ready" for n in range(3)})  # noqa: E731
    monkeypatch.setattr(probe, "look", whole)
    monkeypatch.setattr(status, "_unwell", lambda *_: {})
    return file


def test_a_state_that_is_cut_short_is_said_with_what_helps(broken_state):
    def status(*words):
        return CliRunner().invoke(cli.build(), ["status", "lab", *words], standalone_mode=False)

    assert status().return_value == 0
    content = broken_state.read_text()
    broken_state.with_name(f"{broken_state.name}.bak").write_text(content)
    broken_state.write_text(content[: len(content) // 2])
    done = status("--json")
    assert done.return_value == 1
    told = json.loads(done.stdout)
    assert told["state"] == "degraded"
    assert "lab.json cannot be read" in told["unreadable"][0]["message"]
    assert told["unreadable"][0]["hint"].startswith("cp ")
    said = status()
    assert "lab.json cannot be read" in said.output
    assert "cp " in said.output
    assert "is ready" not in said.output


def test_a_lost_key_is_named(broken_state):
    """Its nodes look as if they did not answer."""
    key = next(broken_state.parents[4].glob("lab/secrets/id_ed25519"))
    key.unlink()
    done = CliRunner().invoke(cli.build(), ["status", "lab"], standalone_mode=False)
    assert done.return_value == 1
    assert f"SSH key is lost ({key})" in done.output.replace("\n", "")
    assert "gpubed plan lab" in done.output


def test_who_asks_while_the_first_up_is_at_work_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    cluster = granted_cluster(tmp_path)
    cluster.allocation.unlink()
    with runlock.hold(cluster.state, "up"):
        for words in (["open", "lab", "--print"], ["status", "lab"], ["run", "lab", "digits"]):
            done = CliRunner().invoke(cli.build(), words, standalone_mode=False)
            assert isinstance(done.exception, Locked), (words, done.exception)
            assert "`gpubed up` (pid" in done.exception.message
            assert done.exception.hint == "wait for its end"
    with runlock.hold(cluster.state, "down"), pytest.raises(allocation.NotUp) as caught:
        allocation.load(cluster.allocation)
    assert not isinstance(caught.value, Locked)
