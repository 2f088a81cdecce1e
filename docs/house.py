"""The pictures of docs/concepts/architecture.md: the floors of gpubed, and the way of `up`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from gpubed.report.svg import WIDTH, Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.house import FLOORS  # noqa: E402

_SOURCE = ROOT / "src" / "gpubed"
_ROW, _GAP = 30, 6
# What each step of `up` makes, of what, and the package that does it.
WAY = (
    ("cluster.yml", "what the user wants", "spec"),
    ("ClusterPlan", "names, addresses, links: computed from it alone", "spec"),
    ("the stack's program", "resources of the testbed, as Pulumi sees them", "backends"),
    ("what is there", "looked at, compared, asked about: before anything is changed", "cluster"),
    (
        "the engine's steps",
        "create, update, replace, delete: each saved before it begins",
        "engines",
    ),
    ("Allocation", "nodes, addresses and host keys that were granted", "backends"),
    ("the last step", "the resource `configuration`: all that follows is within it", "cluster"),
    ("inventory", "hosts.yml, gpubed.yml, ssh_config", "configuration"),
    ("configured nodes", "roles, where they are due", "configuration"),
    ("Verification", "pass, fail or skip, with every figure", "checks"),
    ("runs", "jobs on all ranks: metrics, and all that made them", "jobs"),
    ("campaigns, reports", "many runs, put together", "report"),
)


def pictures() -> dict[str, str]:
    """Return each picture by its file's name."""
    return {"house.svg": _house() + "\n", "way-of-up.svg": _way() + "\n"}


def _house() -> str:
    floors = [*reversed(FLOORS)]
    figure = Figure(
        "house",
        "The packages of gpubed",
        f"From the top: {', '.join(floors)}. Each imports from those below it alone.",
        len(floors) * (_ROW + _GAP) + _GAP,
    )
    for index, name in enumerate(floors):
        y = _GAP + index * (_ROW + _GAP)
        figure.add("rect", "box stroke", x=1, y=y, width=WIDTH - 2, height=_ROW, rx=4)
        figure.text(14, y + 20, name, font_weight="bold")
        figure.text(150, y + 20, _summary(name), "soft")
    return figure.drawing()


def _summary(name: str) -> str:
    folder = _SOURCE / name / "__init__.py"
    path = folder if folder.is_file() else _SOURCE / f"{name}.py"
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return text.replace("\n", " ").replace("`", "").partition(". ")[0].rstrip(".")


def _way() -> str:
    figure = Figure(
        "way",
        "The way of gpubed up",
        " Then ".join(f"{made}: {what}." for made, what, _ in WAY),
        len(WAY) * (_ROW + 2 * _GAP) + _GAP,
    )
    for index, (made, what, package) in enumerate(WAY):
        y = _GAP + index * (_ROW + 2 * _GAP)
        figure.add("rect", "box stroke", x=1, y=y, width=180, height=_ROW, rx=4)
        figure.text(91, y + 20, made, font_weight="bold", text_anchor="middle")
        figure.text(196, y + 20, what)
        figure.text(WIDTH - 8, y + 20, package, "soft", text_anchor="end")
        if index:
            figure.line(91, y - 2 * _GAP, 91, y, "axis")
    return figure.drawing()
