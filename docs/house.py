"""The pictures of docs/concepts/architecture.md: the floors of gpubed, and the way of `up`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.house import FLOORS  # noqa: E402

_SOURCE = ROOT / "src" / "gpubed"
_ROW, _GAP, _WIDTH = 30, 6, 760
_THEME = (
    ".fig .paper{{fill:{paper}}}.fig text{{fill:{ink}}}.fig .soft{{fill:{soft}}}"
    ".fig rect.box,.fig line{{stroke:{ink}}}"
)
_STYLE = (
    ".fig{font-family:system-ui,sans-serif;font-size:13px}.fig .box{fill:none}"
    + _THEME.format(paper="#ffffff", ink="#1b1b1b", soft="#5c5c5c")
    + "@media (prefers-color-scheme:dark){"
    + _THEME.format(paper="#16181b", ink="#ededed", soft="#b0b0b0")
    + "}"
)
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
    drawn = []
    for index, name in enumerate(floors):
        y = _GAP + index * (_ROW + _GAP)
        drawn += [
            _box(y, _WIDTH - 2),
            _text(14, y, name, "font-weight='bold'"),
            _text(150, y, _summary(name), "class='soft'"),
        ]
    said = f"From the top: {', '.join(floors)}. Each imports from those below it alone."
    height = len(floors) * (_ROW + _GAP) + _GAP
    return _figure("house", "The packages of gpubed", said, height, drawn)


def _figure(name: str, title: str, description: str, height: int, drawn: list[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' class='fig' viewBox='0 0 {_WIDTH} {height}' "
        f"width='{_WIDTH}' height='{height}' role='img' "
        f"aria-labelledby='{name}-title {name}-desc'>"
        f"<title id='{name}-title'>{escape(title)}</title>"
        f"<desc id='{name}-desc'>{escape(description)}</desc><style>{_STYLE}</style>"
        f"<rect class='paper' width='{_WIDTH}' height='{height}'/>{''.join(drawn)}</svg>"
    )


def _box(y: int, width: int) -> str:
    return f"<rect class='box' x='1' y='{y}' width='{width}' height='{_ROW}' rx='4'/>"


def _text(x: int, y: int, text: str, attributes: str = "") -> str:
    return f"<text x='{x}' y='{y + 20}' {attributes}>{escape(text)}</text>"


def _summary(name: str) -> str:
    folder = _SOURCE / name / "__init__.py"
    path = folder if folder.is_file() else _SOURCE / f"{name}.py"
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return text.replace("\n", " ").replace("`", "").partition(". ")[0].rstrip(".")


def _way() -> str:
    drawn = []
    for index, (made, what, package) in enumerate(WAY):
        y = _GAP + index * (_ROW + 2 * _GAP)
        drawn += [
            _box(y, 180),
            _text(91, y, made, "font-weight='bold' text-anchor='middle'"),
            _text(196, y, what),
            _text(_WIDTH - 8, y, package, "class='soft' text-anchor='end'"),
        ]
        if index:
            drawn.append(f"<line x1='91' y1='{y - 2 * _GAP}' x2='91' y2='{y}'/>")
    said = " Then ".join(f"{made}: {what}." for made, what, _ in WAY)
    height = len(WAY) * (_ROW + 2 * _GAP) + _GAP
    return _figure("way", "The way of gpubed up", said, height, drawn)
