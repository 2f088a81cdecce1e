"""The rule of the house: an import goes strictly down, or stays inside its package.

Imports within functions, for type checkers and in quoted annotations count as any other.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From the ground up; whoever is not here has no place yet.
FLOORS = (
    "core",
    "recipes",
    "spec",
    "nodes",
    "testbeds",
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
    "resources",
    "cli",
)
# Neither may know the other, although one stands above: a testbed is one for both engines.
APART = (("backends", "engines"),)
# Who looks things up by their names, and may therefore import what is above: how each says it.
LOOKS_UP = {
    "checks/stages.py": {"import_module(f'{checks.__name__}.{name}')"},
    "cluster/doctor.py": {"find_spec('ansible_mitogen')"},
    "cli/__init__.py": {"import_module(f'gpubed.cli.commands.{name}')"},
    "engines/embedded/__init__.py": {"import_module(f'{__name__}.{home}')"},
    # A user's own program.
    "engines/embedded/child.py": {"run_path(entry)", "run_module('pulumi.dynamic')"},
    "jobs/launchers/__init__.py": {"import_module(f'gpubed.jobs.launchers.{name}')"},
    "spec/backend_config.py": {"import_module(f'gpubed.backends.{name}.config')"},
    "testbeds/registry.py": {"import_module(f'gpubed.backends.{name}.backend')"},
}
_BY_NAME = {"__import__", "import_module", "resolve_name", "run_module", "run_path", "find_spec"}
_BY_NAME |= {"entry_points", "exec", "eval", "sys.modules", "load_module", "ImportString"}
_BY_NAME |= {"__loader__", "__spec__", "__builtins__", "builtins"}
# Where such functions are; who looks nothing up needs none of these.
_LOOKERS = {"importlib", "pkgutil", "pydoc", "runpy", "zipimport"}
_HARMLESS = {"importlib.metadata", "importlib.resources"}
# Modules by which all others are reached, and what gpubed itself may be asked for.
_WHOLE = {"gpubed", "sys"}
_OWN = {"__version__", "__file__"}
# What Python beside the package may import of it: Ansible finds the hardware's choices by name.
BESIDE: dict[str, set[str]] = {
    "playbooks": {"hardware"},
    "roles": set(),
    "stacks": {"cluster", "core", "testbeds"},
}
# Generated from Pulumi's own files, a module for each.
_GENERATED = {"engines/embedded/protocol.py"}


def faults(source: Path) -> list[str]:
    """Return what breaks the rule in a tree of `gpubed`'s modules, a line each.

    Args:
        source: The folder of the package.
    """
    modules = {_name(source, path): path for path in sorted(source.rglob("*.py"))}
    graph = {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}
    testbeds = {path.name for path in (source / "backends").iterdir() if path.is_dir()}
    return [
        *_strangers(source),
        *(f for name in graph for other in graph[name] if (f := _wrong(name, other, testbeds))),
        *(
            f"{name} imports {o}, which there is not"
            for name in graph
            for o in graph[name] - {*modules}
        ),
        *_circle(graph),
        *_lookups(source, modules.values()),
        *(f"{name} imports relatively" for name, path in modules.items() if _is_relative(path)),
        *(f"{name} {said}" for name, path in modules.items() for said in _otherwise(path)),
        *(f"{path.name} has types apart from its module" for path in source.rglob("*.pyi")),
    ]


def faults_beside(root: Path) -> list[str]:
    """Return where Python of playbooks, roles and stacks imports what it may not, a line each."""
    return [
        f"{path.relative_to(root)} imports {name}"
        for place, floors in BESIDE.items()
        for path in sorted((root / place).rglob("*.py"))
        if "molecule" not in path.parts
        for name in sorted(set(_named_beside(path)))
        if name.split(".")[1] not in floors
    ]


def _named_beside(path: Path) -> Iterator[str]:
    """Yield what is imported of gpubed, also by its name where that is written out."""
    yield from (name for name in _imports(path, {}) if "." in name)
    for node in _nodes(path.read_text()):
        if isinstance(node, ast.Call) and _last(node.func) in _BY_NAME and node.args:
            yield from re.findall(r"gpubed\.\w+", ast.unparse(node.args[0]))


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all that a module's text says; of trees that are alike, it is read once."""
    nodes = list(ast.walk(ast.parse(text)))
    return tuple(nodes + [inner for node in nodes for inner in _quoted(node)])


def _quoted(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what the quoted parts of an annotation say."""
    for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        for part in ast.walk(annotation) if annotation else ():
            named = part.value if isinstance(part, ast.Constant) else None
            if isinstance(named, str) and "gpubed." in named:
                with suppress(SyntaxError):  # a text of a Literal
                    yield from ast.walk(ast.parse(named, mode="eval"))


def _is_relative(path: Path) -> bool:
    nodes = _nodes(path.read_text())
    return any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)


def _otherwise(path: Path) -> Iterator[str]:
    """Yield how modules could be reached past the rule: by another name, or all at once."""
    nodes = _nodes(path.read_text())
    heads = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.alias) and node.name in _WHOLE and node.asname:
            yield f"calls {node.name} otherwise"
        elif isinstance(node, ast.alias) and node.name == "*":
            yield "imports whatever there is"
        elif _is_whole(node) and id(node) not in heads:
            yield f"hands {ast.unparse(node)} on as a whole"
        elif isinstance(node, ast.Name) and node.id == "compile":
            yield "compiles a text"
        elif isinstance(node, ast.Attribute) and _dotted(node).startswith("gpubed.__"):
            yield from ["looks into gpubed"] if node.attr not in _OWN else ()


def _is_whole(node: ast.AST) -> bool:
    """Say whether it is a value that is one of those modules, not what is called like one."""
    return isinstance(node, ast.Name) and node.id in _WHOLE and isinstance(node.ctx, ast.Load)


def _name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(("gpubed", *(part for part in parts if part != "__init__")))


def _imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of gpubed that one imports, also those that there are not."""
    for node in _nodes(path.read_text()):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        elif isinstance(node, ast.Attribute):  # of `import gpubed`, which has all of them
            names = [name for name in [_dotted(node)] if name in modules]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "gpubed")


def _strangers(source: Path) -> Iterator[str]:
    known = {"__init__.py", "__pycache__", "py.typed", "resources.py"}
    for path in source.iterdir():
        if path.name not in (known if path.is_file() else {*FLOORS, "__pycache__"}):
            yield f"{path.name} has no floor"


def _wrong(name: str, other: str, testbeds: set[str]) -> str:
    (_, *own), (_, *others) = name.split("."), other.split(".")
    if not others:  # the package itself holds nothing but its version
        return ""
    if not own:
        return f"{name} imports {other}, which is within it"
    if own[0] == others[0] == "backends" and set(others[1:2]) & testbeds - set(own[1:2]):
        return f"{name} imports its sibling {other}"
    if own[0] == others[0] or own[0] not in FLOORS or others[0] not in FLOORS:
        return ""
    if (own[0], others[0]) in APART or (others[0], own[0]) in APART:
        return f"{name} imports {other}, of which it must not know"
    is_up = FLOORS.index(others[0]) > FLOORS.index(own[0])
    return f"{name} imports {other}, which is above it" if is_up else ""


def _circle(graph: dict[str, set[str]]) -> Iterator[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def _lookups(source: Path, paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        name = str(path.relative_to(source))
        said = set(_by_name(path)) - LOOKS_UP.get(name, set())
        if name not in LOOKS_UP:
            said |= set(_lookers(path))
        if said and name not in _GENERATED:
            yield f"{name} imports by name: {', '.join(sorted(said))}"


def _by_name(path: Path) -> Iterator[str]:
    """Return what a module imports or runs by its name, each with its first argument.

    Whoever mentions such a function without calling it is about to call it otherwise.
    """
    nodes = _nodes(path.read_text())
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Call):
            function = _last(node.func)
            if function == "getattr" and isinstance(node.args[1], ast.Constant):
                function = str(node.args[1].value)
            if function in _BY_NAME:
                yield f"{function}({ast.unparse(node.args[0]) if node.args else ''})"
        elif isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in called:
            yield from _BY_NAME & {_last(node), _dotted(node)}
        elif isinstance(node, ast.ImportFrom):
            renamed = {alias.name for alias in node.names if alias.asname}
            yield from _BY_NAME & {*renamed, *(f"{node.module}.{a.name}" for a in node.names)}


def _dotted(node: ast.expr) -> str:
    """Return names that are joined by dots; of anything else in front, nothing."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return _dotted(node).rpartition(".")[2]


def _lookers(path: Path) -> Iterator[str]:
    """Return the modules that a module imports to look others up."""
    for node in _nodes(path.read_text()):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = f"{node.module}."
            names = {whole + alias.name for alias in node.names}
            names = {str(node.module)} if node.module in _HARMLESS else names
        else:
            continue
        yield from (n for n in names - _HARMLESS if n.partition(".")[0] in _LOOKERS)
