"""Reads the verbs' names and help from their source files.

Importing all verbs takes most of a second, too long for the list of verbs and for completion.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from gpubed.core import entries

_FOLDER = Path(__file__).parent / "commands"
_PLACE = re.compile(r"^PLACE = (.+)$", re.MULTILINE)
PANELS = ("Cluster", "Work", "Experiments", "Care")


def verbs() -> tuple[str, ...]:
    """Return the names of all verbs: the modules with a `command` or an `app`."""
    return entries.names(_FOLDER, "command", "app")


def panels() -> dict[str, list[str]]:
    """Return the verbs of each panel of the help, in the order of their `PLACE`s."""
    found = []
    for verb in verbs():
        [place] = _PLACE.findall((_FOLDER / f"{verb}.py").read_text(encoding="utf-8"))
        found.append((*ast.literal_eval(place), verb))
    return {name: [verb for panel, _, verb in sorted(found) if panel == name] for name in PANELS}


def summary(verb: str) -> str:
    """Return a verb's help: the docstring of `command`, or the `help` of an `app`; else nothing."""
    for node in ast.parse((_FOLDER / f"{verb}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "app":
            words = {word.arg: word.value for word in getattr(node.value, "keywords", ())}
            return str(ast.literal_eval(words["help"])) if "help" in words else ""
    return ""
