"""What the command line prints is what it was told to print."""

import json

import pytest
from rich.console import Console

from gpubed.cli.ui import UI

ADDRESS = "52:54:00:AB:ab:cd"  # `:ab:` is the name of an emoji


@pytest.mark.parametrize("how", ["say", "note", "mark", "error", "table"])
def test_an_address_or_fingerprint_stays_as_it_is(capsys, how):
    ui = UI()
    if how == "table":
        ui.table(["address"], [[ADDRESS]])
    elif how == "mark":
        ui.mark("pass", ADDRESS)
    else:
        getattr(ui, how)(ADDRESS)
    said = capsys.readouterr()
    assert ADDRESS in said.out + said.err


SENTENCE = (
    "node-1 presents a key that is not its own, so that nobody logged in to https://" + "a" * 50
)


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 40 columns."""
    ui = UI()
    terminal = {"force_terminal": True, "width": 40, "color_system": None}
    ui.err = Console(stderr=True, soft_wrap=True, **terminal)
    return ui


@pytest.mark.parametrize("how", ["note", "error"])
def test_on_a_terminal_lines_break_at_words_and_words_stay_whole(capsys, narrow, how):
    getattr(narrow, how)(SENTENCE)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= 40 for line in lines[:-1])
    assert lines[-1].strip() == "https://" + "a" * 50
    assert " ".join(line.strip() for line in lines).endswith(SENTENCE)


def test_elsewhere_a_line_stays_one(capsys):
    UI().note(SENTENCE)
    assert capsys.readouterr().err == SENTENCE + "\n"


def test_a_command_to_be_copied_stays_whole(capsys, narrow):
    command = "gpubed audit lab --adopt --uuid 5b90f46f-0000-0000-0000-000000000000"
    narrow.error("it is somebody else's", command)
    assert f"  → {command}\n" in capsys.readouterr().err


def test_what_another_program_wrote_is_shown_as_it_is(capsys, narrow):
    table = "rank  images per second  seconds  and more\n   0                 100       12"
    narrow.note(table, whole=True)
    assert capsys.readouterr().err == table + "\n"


HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J\x7f\r\b\ud800\u202egpu"


@pytest.mark.parametrize("how", ["say", "note", "mark", "error", "table", "columns", "hint"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_others_wrote_moves_no_cursor(capsys, how, whole):
    ui = UI()
    if how == "table":
        ui.table(["metric"], [[HOSTILE]])
    elif how == "columns":
        ui.table([HOSTILE], [["x"]])
    elif how == "mark":
        ui.mark("pass", HOSTILE)
    elif how == "error":
        ui.error(HOSTILE)
    elif how == "hint":
        ui.error("x", HOSTILE)
    else:
        getattr(ui, how)(HOSTILE, whole=whole)
    said = capsys.readouterr()
    told = said.out + said.err
    assert "red" in told
    assert "gpu" in told
    assert not set(told) & set("\x1b\x07\x9b\x7f\r\b\u202e\ud800")
    assert "[31m" not in told


def test_lines_stay(capsys):
    UI().say("a\nb\x1b", whole=True)
    assert capsys.readouterr().out == "a\nb\n"


@pytest.mark.parametrize("how", ["document", "event"])
def test_a_document_is_json_and_of_the_schema_that_it_says(capsys, how):
    content = {"schema": "forged", "loss": float("nan"), "rows": ({"s": float("-inf")},)}
    getattr(UI(as_json=True), how)("run", content)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"schema": "gpubed/run/1", "loss": None, "rows": [{"s": None}]}
