"""The only module that writes to a terminal.

Data goes to stdout, progress and messages to stderr. Without a terminal, progress is plain status
lines, and questions count as answered by no. Lines break at words on a terminal only, since
programs read them elsewhere. Control sequences in the text of nodes, jobs and files are removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import TextWrapper
from typing import Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpubed.core import errors
from gpubed.core.files import without_nan
from gpubed.core.text import printable

_USUAL, _UNBROKEN = 80, 10_000  # columns
_MARK = {
    "pass": "[green]✓[/]",
    "fail": "[red]✗[/]",
    "skip": "[yellow]-[/]",
    "simulated": "[yellow]~[/]",
    "create": "[green]+[/]",
    "update": "[yellow]~[/]",
    "replace": "[magenta]±[/]",
    "delete": "[red]-[/]",
    "same": " ",
}


class UI:
    """The output of a verb."""

    cluster = "CLUSTER"  # replaces CLUSTER in hints, which may come from code without the name
    has_printed = False  # whether a document was printed

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out, self.err = _console(), _console(stderr=True)
        self.columns = Console().width  # of the terminal, or the usual ones without one

    def document(self, verb: str, content: dict[str, Any], indent: int | None = 2) -> None:
        """Print the JSON document of a verb, if the verb runs with `--json`.

        Without `indent`, the document is one line. `content` cannot override its `schema`.
        """
        if self.as_json:
            UI.has_printed = True
            schema = {"schema": f"gpubed/{verb}/1"}
            document = without_nan({**schema, **content, **schema})
            self.raw(json.dumps(document, indent=indent, default=str, allow_nan=False) + "\n")

    def say(self, text: str = "", *, whole: bool = False) -> None:
        """Print a line of data, unless the verb runs with `--json`.

        `whole` lines, such as commands to be copied, are not broken at words.
        """
        if not self.as_json:
            with _on_stdout():
                self.out.print(_plain(text if whole else _folded(self.out, text)))

    def raw(self, text: str) -> None:
        """Print text on stdout unchanged, for other programs to read."""
        with _on_stdout():
            sys.stdout.write(text)
            sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, unless the verb runs with `--json`; a terminal breaks cells at words."""
        if self.as_json:
            return
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for index, heading in enumerate(columns):  # users copy names from the first column
            table.add_column(_cell(heading), overflow="fold", no_wrap=index == 0)
        for row in rows:
            table.add_row(*map(_cell, row))
        with _on_stdout():
            self.out.print(table)

    def note(self, text: str, *, whole: bool = False) -> None:
        """Print a message on stderr; `whole` has the same meaning as in `say`."""
        self.err.print(_plain(text if whole else _folded(self.err, text)))

    def mark(self, kind: str, text: str) -> None:
        """Print a status line on stderr with the sign of a result or an operation."""
        self.err.print(f"{_MARK.get(kind, ' ')} {_plain(_folded(self.err, text, behind='✓ '))}")

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Provide a status line on stderr that replaces itself; without a terminal, new lines."""
        if not self.err.is_terminal:
            yield self.note
            return
        with self.err.status(_plain(text)) as status:
            yield lambda now: status.update(_plain(now))

    def error(self, message: str, hint: str | None = None) -> None:
        """Print an error and its hint."""
        message = _folded(self.err, message, behind="error: ")
        self.err.print(f"[bold red]error:[/] {_plain(message)}")
        if hint:
            self.hint(hint)

    def hint(self, hint: str) -> None:
        """Print the hint of an error."""
        self.err.print(f"  [bold]→[/] {_plain(self.filled(hint))}")

    def filled(self, hint: str) -> str:
        """Return a hint with the cluster's name in place of CLUSTER."""
        return errors.of_cluster(hint, UI.cluster)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask for confirmation; with `yes`, or without a terminal, return `yes` instead."""
        if yes or not (sys.stdin.isatty() and self.err.is_terminal):
            return yes
        self.err.print(_plain(f"{_folded(self.err, f'{question} [y/N]')} "), end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _cell(value: object) -> Text:
    text = "" if value is None else printable(str(value))
    return Text.from_markup(f"{_MARK[text]} {text}") if text in _MARK else Text(text)


def _console(**more: Any) -> Console:
    # No emojis: parts of addresses and fingerprints, such as `:ab:`, are names of some.
    console = Console(soft_wrap=True, highlight=False, emoji=False, **more)
    if not console.is_terminal:  # programs read lines
        console.width = _UNBROKEN
    elif console.width < 1:  # `COLUMNS=0`, or a terminal that reports no width
        console.width = _USUAL
    return console


@contextmanager
def _on_stdout() -> Iterator[None]:
    """Turn errors of writing to stdout, which name no file, into errors that name stdout."""
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe
        raise
    except OSError as error:
        raise errors.PrerequisiteMissing(
            f"stdout cannot be written: {error.strerror}",
            "send it elsewhere, or free some space there",
        ) from None


def _plain(text: str) -> str:
    return escape(printable(text))


def _folded(console: Console, text: str, *, behind: str = "") -> str:
    if not console.is_terminal:
        return text
    space = " " * len(behind)
    fold = TextWrapper(
        console.width,
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(fold.fill(line) for line in text.split("\n")).removeprefix(space)
