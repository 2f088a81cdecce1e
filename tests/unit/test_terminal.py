"""What the tests of documents take a terminal for."""

import os
import sys

import pytest

from support import terminal

pytestmark = pytest.mark.process

BAR = "working\r\x1b[2Kdone\r\nframe one\r\nframe two\r\n\x1b[2A\x1b[2Kend\r\n"


def run(script, columns, **options):
    command = [sys.executable, "-c", script]
    return terminal.run(command, columns=columns, cwd="/", env={**os.environ}, limit=20, **options)


def test_what_replaces_itself_is_gone():
    assert terminal.screen(BAR)[:3] == ["done", "end", "frame two"]
    assert terminal.screen("old\rnew\n") == ["new", ""]
    assert terminal.screen("\x1b[31mred\x1b[0m\x1b[K\n")[0] == "\x1b[31mred\x1b[0m"


def test_a_command_sees_a_terminal_of_the_width_or_none():
    script = "import os, sys; print(sys.stdout.isatty() and os.get_terminal_size().columns)"
    assert run(script, 80).text.strip() == "80"
    assert run(script, 200).text.strip() == "200"
    assert run(script, None).text.strip() == "False"


def test_questions_are_answered_where_there_is_a_terminal():
    script = "print(input('remove it? [y/N] ') == 'y')"
    assert "True" in run(script, 80).text
    assert run(script, None).code == 1


@pytest.mark.parametrize("columns", [80, None])
def test_a_command_that_stays_is_interrupted(columns):
    said = run("import time; print('until Ctrl-C', flush=True); time.sleep(60)", columns,
               interrupt="until Ctrl-C")  # fmt: skip
    assert said.code == 130
    assert said.faults() == ["a traceback"]


@pytest.mark.parametrize("columns", [80, None])
def test_a_shell_gets_what_is_typed(columns):
    script = "print('typed', input('$ '))"
    assert "typed exit" in run(script, columns, typed="exit").text


def test_a_line_that_is_too_wide_is_named_unless_it_is_there_to_be_copied():
    def faults(line, **how):
        return terminal.Said(0, line + "\r\n", 20).faults(**how)

    assert faults("a sentence that is too wide for it")
    assert not faults("a sentence that is too wide for it", ours=False)
    assert not faults("https://10.0.0.1/" + "a" * 20)
    assert not faults("  → gpubed audit lab --remove")
    assert not faults("next: gpubed audit lab --remove")
    assert not terminal.Said(0, "a sentence that is too wide for it", None).faults()
