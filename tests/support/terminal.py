"""A command as a person sees it: in a terminal of some width, or without one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pexpect

ROWS = 50
_PROMPT = r"[$#] (\x1b\[[?\d;]*[a-zA-Z])*$"
_QUESTION = r"\[y/N\] "
_PIECE = re.compile(
    r"\x1b\[([?\d;]*)([a-zA-Z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n]|[^\x1b\r\n]+"
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# Whole wherever it is too long for the terminal: what is there to be copied.
_COPIED = re.compile(r"\s*(\S+|([\w ]+: +)?(→|#|sudo|ssh|gpubed|security|certutil) .*)")


@dataclass(frozen=True)
class Said:
    """What a command printed, as bytes have it, and how it ended."""

    code: int
    raw: str
    columns: int | None

    @property
    def lines(self) -> list[str]:
        """What is left on the screen, however high that is; with its colours."""
        return screen(self.raw)

    @property
    def text(self) -> str:
        """The same without colours."""
        return _COLOUR.sub("", "\n".join(self.lines))

    def faults(self, *, ours: bool = True) -> list[str]:
        """Return what nobody should see."""
        found = ["a traceback"] if "Traceback (most recent call last)" in self.text else []
        if self.columns is None or not ours:
            return found
        wide = (line for line in self.text.splitlines() if len(line.rstrip()) > self.columns)
        return found + [f"wider than {self.columns}: {w}" for w in wide if not _COPIED.fullmatch(w)]


def screen(raw: str) -> list[str]:
    """Return the lines that are left once all that replaces itself has done so.

    Knows what progress needs: return, erase a line, go up. A line may be wider than the
    terminal, which would break it.
    """
    lines, row, fresh = [""], 0, False
    for piece in _PIECE.finditer(raw):
        text, (count, what) = piece[0], piece.groups()
        if text == "\n":
            row, fresh = row + 1, False
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            fresh = True
        elif what == "A":
            row = max(0, row - int(count or 1))
        elif what == "K":
            lines[row] = "" if fresh or count == "2" else lines[row]
        elif what == "m" or not text.startswith("\x1b"):
            lines[row] = text if fresh and what is None else lines[row] + text
            fresh = fresh and what is not None
    return lines


def run(
    command: Sequence[str],
    *,
    columns: int | None,
    cwd: Path,
    env: Mapping[str, str],
    typed: str = "",
    interrupt: str | None = None,
    limit: float = 1800,
) -> Said:
    if columns is None:
        return _without_terminal(command, cwd, env, typed, interrupt, limit)
    child = pexpect.spawn(
        command[0],
        [*command[1:]],
        cwd=str(cwd),
        env={**env, "TERM": "xterm-256color"},
        dimensions=(ROWS, columns),
        encoding="utf-8",
        codec_errors="replace",
        timeout=limit,
    )
    answers = {_QUESTION: "y\n", _PROMPT: f"{typed}\n" if typed else "", interrupt: "\x03"}
    try:
        raw = _answered(child, {words: said for words, said in answers.items() if words and said})
    finally:
        child.close(force=True)
    code = child.exitstatus if child.exitstatus is not None else 128 + (child.signalstatus or 0)
    return Said(code, raw, columns)


def _answered(child: pexpect.spawn, answers: dict[str, str]) -> str:
    """Let a program run to its end; return all that it printed."""
    raw = ""
    while True:
        words = list(answers)
        try:
            found = child.expect([*words, pexpect.EOF])
        except pexpect.TIMEOUT:
            raise TimeoutError(raw + child.before) from None
        raw += child.before
        if found == len(words):
            return raw
        raw += child.after
        child.send(answers[words[found]])
        if words[found] != _QUESTION:
            del answers[words[found]]


def _without_terminal(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    typed: str,
    interrupt: str | None,
    limit: float,
) -> Said:
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        raw = ""
        clock = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
        clock.start()
        try:
            process.stdin.write(f"{typed}\n" if typed else "")
            process.stdin.close()
            for line in process.stdout:
                raw += line
                if interrupt and interrupt in line:
                    os.killpg(process.pid, signal.SIGINT)
            code = process.wait()
        finally:
            clock.cancel()
    if code == -signal.SIGKILL:
        raise TimeoutError(raw)
    return Said(code if code >= 0 else 128 - code, raw, None)
