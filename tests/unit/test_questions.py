"""What deletes or replaces asks first: without a terminal it refuses, with one it can be read."""

import os
import select

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cli.ui import UI
from gpubed.cluster import up
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project


@pytest.fixture
def terminal(monkeypatch):
    """A function that types on a terminal, asks there, and returns the answer and the screen."""
    ours, theirs = os.openpty()

    def ask(typed, question="Go on?"):
        os.write(ours, typed)
        with os.fdopen(os.dup(theirs)) as stdin, os.fdopen(os.dup(theirs), "w") as stderr:
            monkeypatch.setattr("sys.stdin", stdin)
            monkeypatch.setattr("sys.stderr", stderr)
            answer = UI().confirm(question, yes=False)
        monkeypatch.undo()
        return answer, _all_of(ours)

    yield ask
    os.close(ours)
    os.close(theirs)


def _all_of(terminal):
    """Return what a terminal shows; it hands that out in pieces."""
    screen = b""
    while select.select([terminal], [], [], 0.5)[0]:
        screen += os.read(terminal, 4096)
    return screen.decode()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [(b"\n", False), (b"n\n", False), (b"y\n", True), (b"YES\n", True), (b"\x04", False)],
    ids=["enter", "n", "y", "YES", "Ctrl-D"],
)
def test_a_person_sees_which_answer_enter_gives(terminal, typed, answer):
    given, screen = terminal(typed)
    assert "Go on? [y/N] " in screen
    assert given is answer


def test_without_a_terminal_up_removes_nothing_unasked(tmp_path, monkeypatch):
    """Shrinking a cluster in a script: the run is a STAND-IN that only asks."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 2}]\n")
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(up, "up", lambda *_, approve, **__: approve(["delete Node node-2"]))
    with pytest.raises(UsageError, match="nothing was changed: delete Node node-2") as refused:
        CliRunner().invoke(
            cli.build(), ["up", "lab"], standalone_mode=False, catch_exceptions=False
        )
    assert (refused.value.exit_code, refused.value.hint) == (2, "gpubed up lab -y")
