"""The rule of the house: an import goes strictly down, or stays inside its package.

Imports within functions and for type checkers count as any other.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From the ground up; whoever is not here has no place yet.
FLOORS = (
    "core",
    "recipes",
    "spec",
    "nodes",
    "testbeds",
    "resources",
    "hardware",
    "engines",
    "backends",
    "configuration",
    "access",
    "jobs",
    "checks",
    "campaigns",
    "report",
    "cluster",
    "chaos",
    "cli",
)
# Who looks things up by their names, and may therefore import what is above.
LOOKS_UP = {
    "chaos/scenario.py",
    "checks/stages.py",
    "cli/__init__.py",
    "engines/embedded/__init__.py",
    "engines/embedded/protocol.py",
    "jobs/launchers/__init__.py",
    "resources.py",
    "spec/backend_config.py",
    "testbeds/registry.py",
}


def faults(source: Path) -> list[str]:
    """Return what breaks the rule in a tree of `gpubed`'s modules, a line each.

    Args:
        source: The folder of the package.
    """
    modules = {_name(source, path): path for path in sorted(source.rglob("*.py"))}
    graph = {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}
    return [
        *_strangers(source),
        *(fault for name in graph for other in graph[name] if (fault := _wrong(name, other))),
        *_circle(graph),
        *_lookups(source, modules.values()),
    ]


def _name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(("gpubed", *(part for part in parts if part != "__init__")))


def _imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        else:
            continue
        yield from (name for name in names if name in modules)


def _strangers(source: Path) -> Iterator[str]:
    for path in source.iterdir():
        if path.stem not in (*FLOORS, "__init__", "__pycache__", "py"):
            yield f"{path.name} has no floor"


def _wrong(name: str, other: str) -> str:
    (_, *own), (_, *others) = name.split("."), other.split(".")
    if not own or not others:  # the package itself holds nothing but its version
        return ""
    if own[0] == others[0]:
        siblings = own[0] == "backends" and len(own) > 2 and len(others) > 2
        return f"{name} imports its sibling {other}" if siblings and own[1] != others[1] else ""
    if own[0] not in FLOORS or others[0] not in FLOORS:
        return ""
    is_up = FLOORS.index(others[0]) > FLOORS.index(own[0])
    return f"{name} imports {other}, which is above it" if is_up else ""


def _circle(graph: dict[str, set[str]]) -> Iterator[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def _lookups(source: Path, paths: Iterator[Path]) -> Iterator[str]:
    for path in paths:
        name = str(path.relative_to(source))
        if "import_module" in path.read_text() and name not in LOOKS_UP:
            yield f"{name} imports by name"
