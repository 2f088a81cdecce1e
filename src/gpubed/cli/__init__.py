"""The command line: finds the verbs, one file each in `commands`, and runs one of them.

A verb is a function `command`, or an `app` with verbs of its own. Names and help are read from the
source: importing all verbs takes most of a second, too long for the list of verbs and completion.
"""

from __future__ import annotations

import ast
import gc
import io
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

import typer
from typer._completion_shared import _completion_scripts
from typer.core import TyperGroup

import gpubed
from gpubed.core import progress
from gpubed.core.errors import (
    GpubedError,
    in_the_way,
    is_about_a_name,
    is_about_the_disk,
    unwritable,
)
from gpubed.core.files import modules_with
from gpubed.engines import interruption

if TYPE_CHECKING:
    from gpubed.cli.ui import UI

# Verbs without a time limit after Ctrl-C: they first end their processes on nodes.
_UNLIMITED = {"run", "bench"}
PANELS = ("Cluster", "Work", "Experiments", "Care")
_FOLDER = Path(__file__).parent / "commands"
_PLACE = re.compile(r"^PLACE = (.+)$", re.MULTILINE)
COMPLETE = "_GPUBED_COMPLETE"  # set by the shell for completion


def verbs() -> tuple[str, ...]:
    """Return the names of all verbs: the modules with a `command` or an `app`."""
    return modules_with(_FOLDER, "command", "app")


def panels() -> dict[str, list[str]]:
    """Return the verbs of each panel of the help, in the order of their `PLACE`s."""
    found = []
    for verb in verbs():
        [place] = _PLACE.findall((_FOLDER / f"{verb}.py").read_text(encoding="utf-8"))
        found.append((*ast.literal_eval(place), verb))
    return {name: [verb for panel, _, verb in sorted(found) if panel == name] for name in PANELS}


def summary(verb: str) -> str:
    """Return a verb's help: the docstring of `command`, or the `help` of an `app`; may be empty."""
    for node in ast.parse((_FOLDER / f"{verb}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "app":
            words = {word.arg: word.value for word in getattr(node.value, "keywords", ())}
            return str(ast.literal_eval(words["help"])) if "help" in words else ""
    return ""


class _Panels(TyperGroup):
    """Lists the verbs by panel in the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        widest = max(map(len, self.commands))
        room = formatter.width - widest - 6  # as click leaves it
        for panel, names in panels().items():
            shown = [(name, self.commands[name]) for name in names if name in self.commands]
            rows = [(f"{name:{widest}}", verb.get_short_help_str(room)) for name, verb in shown]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def build(only: str | None = None) -> typer.Typer:
    """Return the application with every verb of `commands`, or with one of them."""
    app = _bare()
    for name in [only] if only else verbs():
        module = import_module(f"gpubed.cli.commands.{name}")
        example = f"Example:  {module.EXAMPLE}"
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, epilog=example)
        else:
            settings = getattr(module, "SETTINGS", {})
            app.command(name, epilog=example, **settings)(module.command)
    return app


def listing() -> typer.Typer:
    """Return an application that can only list the verbs and their help."""
    app = _bare()
    for name in verbs():
        app.command(name, help=summary(name))(lambda: None)
    return app


def requested_verb(words: list[str]) -> str | None:
    """Return the verb of a command line, or of the line being completed; None without a verb."""
    if COMPLETE in os.environ:
        # bash passes one word per line.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        # An unfinished last word does not count.
        words = line.split()[1:] if line[-1:].isspace() else line.split()[1:-1]
    first = next((word for word in words if not word.startswith("-")), "")
    return first if first in verbs() else None


def _bare() -> typer.Typer:
    # Keeps bash from adding a space after `NAME=`, so that the value can follow.
    script = _completion_scripts["bash"]
    nospace = '[[ "${COMPREPLY[*]}" != *= ]] || compopt -o nospace\n    '
    if nospace not in script:
        _completion_scripts["bash"] = script.replace("return 0\n", f"{nospace}return 0\n")
    app = typer.Typer(
        name="gpubed",
        help="Turn a testbed into a ready, verified Horovod GPU cluster.",
        epilog="Start with: gpubed up lab",
        cls=_Panels,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def main() -> None:
    """Run the command line; errors become one sentence and an exit code."""
    gc.set_threshold(50_000)  # collecting takes a tenth of the time of `check`
    sys.stdout = sys.stdout or io.StringIO()  # stdout was closed: discard output
    _replace_unencodable()
    _forget_pulumi_settings()
    verb = requested_verb(sys.argv[1:])
    signals = interruption.handle(limited=verb not in _UNLIMITED)
    progress.tell(_show_note)
    try:
        code = (build(verb) if verb else listing())(standalone_mode=False)
    except GpubedError as error:
        code = _refuse(error.message, error.hint, error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        signals = signals or [SIGINT]
    except typer.Exit as done:
        code = done.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if not (is_about_the_disk(error) or is_about_a_name(error)):
            raise
        known = unwritable(error) if is_about_the_disk(error) else in_the_way(error)
        code = _refuse(known.message, known.hint, known.exit_code)
    except Exception as error:
        # Click's usage errors can show themselves; other exceptions are bugs.
        if not hasattr(error, "show"):
            raise
        code = _refuse_usage(verb, error)
    if signals:
        interruption.end_descendants()
        # Typer turns an interruption into another exit code, and a run may fail because of one.
        code = interruption.EXIT + signals[0]
        what, hint = interruption.message()
        code = _refuse(what, hint, code) if what else code
    sys.exit(code or 0)


def _replace_unencodable() -> None:
    """Show `?` for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _forget_pulumi_settings() -> None:
    """Remove Pulumi's variables from the environment; their passphrase would encrypt the stacks."""
    for name in [name for name in os.environ if name.startswith("PULUMI_")]:
        if name != "PULUMI_HOME":  # the folder of the plugins
            del os.environ[name]


def _refuse_usage(verb: str | None, error: Any) -> int:
    error.show()
    hint = None
    if verb == "run" and type(error).__name__ == "NoSuchOption":
        hint = "arguments of the job: --set NAME=VALUE, or behind --: -- --NAME VALUE"
        _ui().note(f"  → {hint}")
    _document(error.format_message(), hint, 2)
    return 2


def _show_note(event: progress.Event) -> None:
    if event["what"] == "note":
        _ui().note(event["message"])


def _refuse(message: str, hint: str | None, code: int) -> int:
    with suppress(OSError):  # stderr may be closed; the document and the exit code remain
        _ui().error(message, hint)
    _document(message, hint, code)
    return code


def _document(message: str, hint: str | None, code: int) -> None:
    words = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if "--json" not in words:
        return
    ui = _ui()
    if not ui.has_printed:
        ui.as_json = True
        hint = None if hint is None else ui.filled(hint)
        ui.document("error", {"message": message, "hint": hint, "exit_code": code})


def _ui() -> UI:
    # Slow to import, and not needed for help.
    from gpubed.cli.ui import UI

    return UI()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpubed {gpubed.__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True),
) -> None:
    """Turn a testbed into a ready, verified Horovod GPU cluster."""
