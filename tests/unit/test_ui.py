"""What the command line prints is what it was told to print."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gpubed.cli.ui import UI
from support import terminal

GPUBED = Path(sys.executable).with_name("gpubed")
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


ROWS = [["20261127-150630364-imagenet", "interrupted", 2, "step 120 of 300, 60 s left " * 5]]


@pytest.mark.parametrize("width", [None, 60])
def test_a_row_is_a_line_but_on_a_terminal_where_its_name_stays_whole(capsys, width):
    ui = UI()
    if width:
        ui.out = Console(force_terminal=True, width=width, soft_wrap=True, color_system=None)
    ui.table(["run", "status", "ranks", "figures"], ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert any(ROWS[0][0] in line for line in lines)
    if width:
        assert all(len(line) <= width for line in lines)
    else:
        assert any(all(str(cell).strip() in line for cell in ROWS[0]) for line in lines)


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


@pytest.mark.parametrize("indent", [2, None])
def test_a_document_is_json_and_of_the_schema_that_it_says(capsys, indent):
    content = {"schema": "forged", "loss": float("nan"), "rows": ({"s": float("-inf")},)}
    UI(as_json=True).document("run", content, indent)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"schema": "gpubed/run/1", "loss": None, "rows": [{"s": None}]}


@pytest.mark.process
@pytest.mark.parametrize("columns", ["0"])
def test_a_terminal_without_a_width_is_written_to(tmp_path, columns):
    """As `COLUMNS=0` says, and some terminals that are none."""
    environment = {**os.environ, "COLUMNS": columns, "GPUBED_ROOT": str(tmp_path)}
    for words, said in ((["runs", "X"], "no cluster"), (["recipe", "list"], "cpu")):
        done = terminal.run([str(GPUBED), *words], columns=80, cwd="/", env=environment, limit=60)
        assert "Traceback" not in done.text
        assert said in " ".join(done.text.split()) or columns == "1"


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["ascii"])
def test_what_a_terminal_cannot_show_is_replaced(encoding):
    program = (
        "import sys, typer\nfrom gpubed import cli\n"
        "from gpubed.cli.ui import UI\n"
        "def told(words):\n"
        "    ui = UI('--json' in words)\n"
        "    ui.say('1 ± 2 s → 東京')\n    ui.note('1 ± 2 s → 東京')\n"
        "    ui.table(['metric'], [['1 ± 2 s → 東京']])\n"
        "    ui.document('told', {'said': '1 ± 2 s → 東京'})\n"
        "cli.listing = lambda: lambda **_: told(sys.argv[1:])\ncli.main()\n"
    )

    def call(*words):
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )

    done, as_json = call(), call("--json")
    assert (done.returncode, as_json.returncode) == (0, 0), done.stderr.decode()
    for said in (done.stdout, done.stderr):
        assert b"2 s ? ??" in said
    assert json.loads(as_json.stdout)["said"] == "1 ± 2 s → 東京"
