"""The order of gpubed's packages: an import goes strictly down, or stays inside its package."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From the ground up.
FLOORS = (
    "core",
    "recipes",
    "spec",
    "nodes",
    "testbeds",
    "hardware",
    "prediction",
    "engines",
    "backends",
    "configuration",
    "access",
    "jobs",
    "checks",
    "campaigns",
    "report",
    "cluster",
    "resources",
    "cli",
)
# What Python beside the package may import of it.
BESIDE: dict[str, set[str]] = {
    "playbooks": {"hardware"},
    "roles": set(),
    "stacks": {"resources"},
}


def faults(source: Path) -> list[str]:
    """Return what breaks the order in a tree of gpubed's modules, a line each."""
    graph = {_name(source, path): set[str]() for path in source.rglob("*.py")}
    for path in source.rglob("*.py"):
        graph[_name(source, path)] |= set(imports(path, graph))
    found = [wrong for name in graph for other in graph[name] if (wrong := _wrong(name, other))]
    try:
        TopologicalSorter({name: others - {name} for name, others in graph.items()}).prepare()
    except CycleError as error:
        found.append(f"a circle: {' -> '.join(reversed(error.args[1]))}")
    return found


def faults_beside(root: Path) -> list[str]:
    """Return where Python of playbooks, roles and stacks imports what it may not, a line each."""
    return [
        f"{path.relative_to(root)} imports {name}"
        for place, floors in BESIDE.items()
        for path in sorted((root / place).rglob("*.py"))
        if "molecule" not in path.parts
        for name in sorted(set(imports(path)))
        if "." in name and name.split(".")[1] not in floors
    ]


def imports(path: Path, modules: object = ()) -> Iterator[str]:
    """Yield the modules of gpubed that a file imports, within functions and for types, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]  # type: ignore[operator]
        yield from (name for name in names if name.split(".")[0] == "gpubed")


def _name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(("gpubed", *(part for part in parts if part != "__init__")))


def _wrong(name: str, other: str) -> str:
    own, others = name.split(".")[1:], other.split(".")[1:]
    if not own or not others:
        return ""
    if own[0] not in FLOORS:
        return f"{name} has no floor"
    if own[0] == others[0]:
        siblings = own[0] == "backends" and len(own) > 2 and len(others) > 2
        return f"{name} imports its sibling {other}" if siblings and own[1] != others[1] else ""
    if {own[0], others[0]} == {"backends", "engines"}:
        return f"{name} imports {other}, of which it must not know"
    is_up = FLOORS.index(others[0]) > FLOORS.index(own[0])
    return f"{name} imports {other}, which is above it" if is_up else ""
