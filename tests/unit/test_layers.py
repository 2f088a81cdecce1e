"""Imports go down, input of others is read in one place, roles know no testbed."""

import ast
import re
from pathlib import Path

import pytest

from support import house

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpubed"
MODULES = sorted(SOURCE.rglob("*.py"))
PARSERS = {"json.load", "json.loads", "yaml.load", "yaml.safe_load", "etree.fromstring"}
# These parse by themselves: the place for it, XML with a type of its own, and the kind of login.
PARSE = {
    "core/reading.py",
    "core/yaml_lines.py",
    "backends/virtualwall/documents.py",
    "hardware/recording.py",
}


def test_imports_go_strictly_down():
    assert house.faults(SOURCE) == []


def test_python_beside_the_package_imports_what_it_may():
    assert house.faults_beside(ROOT) == []


def test_input_of_others_is_parsed_in_one_place():
    """`gpubed.core.reading` bounds, parses and validates it, and says what repairs it."""
    found = [
        f"{name}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in MODULES
        if (name := str(path.relative_to(SOURCE))) not in PARSE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PARSERS
    ]
    assert found == []


# `local` and `static` are words, too: only comparisons count.
NAMES_A_BACKEND = re.compile(
    r"virtual ?wall|openstack|gpulab|fed4fire|backend[._]type|gpubed_backend|spec\.backend\b"
    r"|backend\W{1,6}(local|static)\b|\b(local|static) backend",
    re.IGNORECASE,
)


def test_roles_and_playbooks_never_name_a_backend():
    files = [*ROOT.glob("roles/*/[!m]*/**/*"), *ROOT.glob("roles/*/meta/*")]
    found = [
        f"{path.relative_to(ROOT)}: {said[0]}"
        for path in [*files, *ROOT.glob("playbooks/**/*")]
        if path.is_file() and path.suffix not in (".pyc", ".json")
        for said in NAMES_A_BACKEND.finditer(path.read_text(errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "cli" / "commands").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_every_verb_has_help_and_an_example(path):
    tree = ast.parse(path.read_text())
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    commands = [n for n in public if n.name == "command" or n.decorator_list]
    assert commands
    assert all(ast.get_docstring(command) for command in commands)
    assert re.search(rf"(?m)^EXAMPLE = .*\n?.*gpubed {path.stem}", path.read_text())


PARTS = {
    "src/gpubed/backends": ("__init__.py", "config.py", "backend.py", "cluster.yml", "README.md"),
    "jobs": ("job.yml", "main.py", "README.md"),
}


@pytest.mark.parametrize(
    ("folder", "part"),
    [
        pytest.param(folder, part, id=f"{folder.parent.name}-{folder.name}-{part}")
        for place, parts in PARTS.items()
        for folder in sorted((ROOT / place).iterdir())
        if folder.is_dir() and folder.name != "__pycache__"
        for part in parts
    ],
)
def test_every_backend_and_job_is_complete(folder, part):
    assert (folder / part).is_file()
