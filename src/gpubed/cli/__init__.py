"""The command line. Each verb is one file in `commands`; this module only finds them.

A verb is a function `command`, or an `app` with verbs of its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from signal import SIGINT

import typer

from gpubed import __version__, interruption, progress
from gpubed.cli.ui import UI
from gpubed.errors import GpubedError, is_about_the_disk, unwritable

# What they started elsewhere ends first, however long that takes.
_PATIENT = {"run"}


def build(only: str | None = None) -> typer.Typer:
    """Return the application with every verb of `commands`, or with one of them."""
    app = typer.Typer(
        name="gpubed",
        help="Turn a testbed into a ready, verified Horovod GPU cluster.",
        epilog="Start with: gpubed init lab && gpubed up lab",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [only] if only else verbs():
        module = import_module(f"gpubed.cli.commands.{name}")
        example = f"Example:  {module.EXAMPLE}"
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, epilog=example)
        else:
            settings = getattr(module, "SETTINGS", {})
            app.command(name, epilog=example, **settings)(module.command)
    return app


def verbs() -> list[str]:
    """Return the names of all verbs."""
    return sorted(p.stem for p in (Path(__file__).parent / "commands").glob("[a-z]*.py"))


def _asked(words: list[str]) -> str | None:
    """Return the verb, if it is the first word: the others need not be imported then."""
    first = words[0] if words else ""
    return first if first in verbs() else None


def main() -> None:
    """Run the command line; errors become one sentence and an exit code."""
    asked = _asked(sys.argv[1:])
    signals = interruption.handle(limited=asked not in _PATIENT)
    progress.tell(_say)
    try:
        code = build(asked)(standalone_mode=False)
    except GpubedError as error:
        UI().error(error.message, error.hint)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        signals = signals or [SIGINT]
    except typer.Exit as done:
        code = done.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if not is_about_the_disk(error):
            raise
        said = unwritable(error)
        UI().error(said.message, said.hint)
        code = said.exit_code
    except Exception as error:
        # Click's usage errors know how to show themselves; the rest are bugs.
        if not hasattr(error, "show"):
            raise
        error.show()
        code = 2
    if signals:
        interruption.leave_nobody()
        # Typer makes an exit of an interruption, and a run may fail of it.
        code = interruption.EXIT + signals[0]
        UI().error(*interruption.WORDS)
    sys.exit(code or 0)


def _say(event: progress.Event) -> None:
    """Print a note of a verb that shows no progress: a testbed that is waited for, most likely."""
    if event["what"] == "note":
        UI().note(event["message"])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpubed {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True),
) -> None:
    """Turn a testbed into a ready, verified Horovod GPU cluster."""
