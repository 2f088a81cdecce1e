"""The house: who may import whom, where what others wrote comes in, and what is complete."""

import ast
import re
import shutil
from pathlib import Path

import pytest

from support import house

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpubed"
MODULES = sorted(SOURCE.rglob("*.py"))
BACKENDS = sorted((SOURCE / "backends").rglob("*.py"))
# By these a module reads `cluster.yml`, or a copy of it; a testbed's `reach` does it for a backend.
SPECIFICATION = {
    "gpubed.core.located",
    *(f"gpubed.testbeds.{name}" for name in ("made_on", "registry", "specification")),
}
# Whoever parses by himself meets what is malformed by himself.
PARSERS = {"load", "loads", "safe_load", "fromstring", "model_validate_json", "validate_json"}
OF_PARSERS = {"json", "yaml", "etree", "gzip", "zlib", "tarfile"}
READS = {"read_text", "read_bytes"}
WAY_IN = {
    "core/reading.py",
    "core/located.py",
    "backends/virtualwall/documents.py",
    "hardware/recording.py",  # nvidia-smi's XML declares a type; the report came in by `reading`
}
# The program, of which projects hold copies, declares a cluster's resources by its plan alone.
LOOKS_THE_PROJECT_UP = {"openstack/component.py"}
# What is no document of others: files that gpubed brings, and the kernel's.
BROUGHT = {
    "backends/gpulab/request.py",
    "backends/local/confinement.py",
    "backends/local/image.py",
    "backends/local/python_image.py",
    "backends/virtualwall/prepare.py",
    "cli/commands/init.py",
    "cli/outline.py",
    "core/entries.py",
    "core/paths.py",
    "spec/placeholders.py",
    "recipes/recipe.py",
    "configuration/roles.py",
}
KERNELS = {
    "backends/local/addresses.py",
    "backends/local/doctor.py",
    "backends/local/vm/machine.py",
    "engines/embedded/backend.py",
    "access/peers.py",
    "core/runlock.py",
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_go_strictly_down():
    assert house.faults(SOURCE) == []
    assert len(house.FLOORS) <= 25


@pytest.mark.parametrize(
    ("planted", "text", "found"),
    [
        ("spec/plan.py", "from gpubed.jobs import jobfile", "gpubed.spec.plan imports gpubed.jobs"),
        (
            "spec/plan.py",
            "def late():\n    from gpubed.jobs.jobfile import load",
            "gpubed.spec.plan imports gpubed.jobs.jobfile, which is above it",
        ),
        (
            "nodes/ssh.py",
            "if TYPE_CHECKING:\n    from gpubed.cluster.status import status",
            "gpubed.nodes.ssh imports gpubed.cluster.status, which is above it",
        ),
        (
            "backends/local/daemon.py",
            "from gpubed.backends.static.node import Host",
            "imports its sibling gpubed.backends.static.node",
        ),
        ("core/files.py", "from gpubed.core import reading", "a circle: "),
        ("core/files.py", "import_module('gpubed.cli')", "core/files.py imports by name"),
        ("core/files.py", "runpy.run_module('gpubed.cli')", "core/files.py imports by name"),
        ("core/files.py", "cli = __import__('gpubed.cli')", "core/files.py imports by name"),
        (
            "testbeds/registry.py",
            "import_module('gpubed.cli')",
            "registry.py imports by name",
        ),
        (
            "testbeds/registry.py",
            "find = import_module",
            "registry.py imports by name: import_module",
        ),
        (
            "testbeds/registry.py",
            "all(map(import_module, names))",
            "registry.py imports by name",
        ),
        ("testbeds/registry.py", "from importlib import import_module as find", "imports by name"),
        (
            "testbeds/registry.py",
            "getattr(importlib, 'import_module')('gpubed.cli')",
            "imports by name",
        ),
        ("core/files.py", "import importlib as i", "core/files.py imports by name: importlib"),
        ("core/files.py", "from importlib.util import find_spec", "core/files.py imports by name"),
        ("core/files.py", "from importlib.machinery import SourceFileLoader", "imports by name"),
        ("core/files.py", "import pydoc", "core/files.py imports by name: pydoc"),
        ("core/files.py", "cli = sys.modules['gpubed.cli']", "core/files.py imports by name"),
        ("core/files.py", "from sys import modules", "core/files.py imports by name: sys.modules"),
        ("core/files.py", "look = __import__", "core/files.py imports by name: __import__"),
        (
            "spec/plan.py",
            "from gpubed.jobs.nosuch import x",
            "gpubed.spec.plan imports gpubed.jobs.nosuch, which there is not",
        ),
        ("spec/plan.py", "import gpubed.jobs.nosuch", "gpubed.jobs.nosuch, which there is not"),
        (
            "spec/plan.py",
            "import gpubed\ngpubed.jobs.jobfile.load('digits')",
            "gpubed.spec.plan imports gpubed.jobs.jobfile, which is above it",
        ),
        ("spec/plan.py", "import gpubed as g", "gpubed.spec.plan calls gpubed otherwise"),
        (
            "spec/plan.py",
            "import gpubed\ng = gpubed\ng.jobs.jobfile.load('digits')",
            "gpubed.spec.plan hands gpubed on as a whole",
        ),
        ("spec/plan.py", "import gpubed\ngetattr(gpubed, 'jobs')", "hands gpubed on as a whole"),
        ("spec/plan.py", "import gpubed\ngpubed.__dict__['jobs']", "looks into gpubed"),
        ("spec/plan.py", "from gpubed import *", "gpubed.spec.plan imports whatever there is"),
        ("spec/plan.py", "import sys as s\ns.modules['gpubed.jobs']", "calls sys otherwise"),
        ("spec/plan.py", "import sys\ngetattr(sys, 'modules')", "hands sys on as a whole"),
        (
            "spec/plan.py",
            "def f(at: 'gpubed.cluster.status.Status | None') -> None: ...",
            "gpubed.spec.plan imports gpubed.cluster.status, which is above it",
        ),
        ("core/files.py", "__loader__.load_module('gpubed.cli')", "imports by name: __loader__"),
        ("core/files.py", "from pydantic import ImportString\na: ImportString", "ImportString"),
        ("core/files.py", "import builtins\nbuiltins.exec('')", "core/files.py imports by name"),
        ("core/files.py", "made = compile('import gpubed.cli', '', 'exec')", "compiles a text"),
        ("core/files.pyi", "import gpubed.cli", "files.pyi has types apart from its module"),
        ("spec/plan.py", "from ..jobs import jobfile", "gpubed.spec.plan imports relatively"),
        ("backends/local/daemon.py", "from gpubed.backends import static", "imports its sibling"),
        ("backends/granted.py", "import gpubed.backends.static.node", "imports its sibling"),
        ("backends/__init__.py", "from gpubed.backends.static import node", "imports its sibling"),
        ("backends/local/node.py", "from gpubed.engines import stack", "must not know"),
        ("__init__.py", "from gpubed.report import plots", "which is within it"),
        ("newcomer.py", "", "newcomer.py has no floor"),
        ("core.py", "", "core.py has no floor"),
        ("py.py", "", "py.py has no floor"),
    ],
)
def test_what_breaks_the_rule_is_found(tmp_path, planted, text, found):
    tree = shutil.copytree(SOURCE, tmp_path / "gpubed", ignore=shutil.ignore_patterns("*.pyc"))
    with (tree / planted).open("a") as file:
        file.write(f"\n{text}\n")
    assert [fault for fault in house.faults(tree) if found in fault]


@pytest.mark.parametrize(
    "text",
    [
        "import gpubed\nprint(gpubed.__version__)",
        "from importlib.metadata import version",
        "from importlib import resources",
        "run('exec', re.compile('eval'))",
        "import sys\nsys.stdout.write('gpubed.jobs')",
        "def f(how: Literal['not an expression']) -> 'str | None': ...",
    ],
)
def test_what_looks_nothing_up_is_no_fault(tmp_path, text):
    tree = shutil.copytree(SOURCE, tmp_path / "gpubed", ignore=shutil.ignore_patterns("*.pyc"))
    with (tree / "core/files.py").open("a") as file:
        file.write(f"\n{text}\n")
    assert house.faults(tree) == []


def test_python_beside_the_package_imports_what_it_may():
    assert house.faults_beside(ROOT) == []


@pytest.mark.parametrize(
    ("planted", "text", "found"),
    [
        ("roles/nccl/files/derive.py", "from gpubed.core import files", "imports gpubed.core"),
        (
            "playbooks/filter_plugins/gpubed_hardware.py",
            "import_module('gpubed.cluster.status')",
            "imports gpubed.cluster",
        ),
        ("stacks/cluster/__main__.py", "from gpubed.cli import main", "imports gpubed.cli"),
    ],
)
def test_what_python_beside_the_package_may_not_is_found(tmp_path, planted, text, found):
    for name in house.BESIDE:
        ignored = shutil.ignore_patterns("*.pyc", "molecule")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    with (tmp_path / planted).open("a") as file:
        file.write(f"\n{text}\n")
    assert [fault for fault in house.faults_beside(tmp_path) if found in fault]


def parses_by_itself(tree):
    """Yield what a module parses without `gpubed.core.reading`, a line each."""
    nodes = list(ast.walk(tree))
    imported = [node for node in nodes if isinstance(node, ast.Import)]
    called = {a.asname: a.name for node in imported for a in node.names if a.asname}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in OF_PARSERS:
            for name in PARSERS & {alias.name for alias in node.names}:
                yield f"line {node.lineno}: {node.module}.{name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            function, owner = node.func.attr, getattr(node.func.value, "id", "")
            known = called.get(owner, owner) in OF_PARSERS or function.endswith("_json")
            if function in PARSERS and known:
                yield f"line {node.lineno}: {owner}.{function}"


def reads_by_itself(tree):
    """Yield where a module reads a file without `gpubed.core.reading`, a line each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in READS:
            yield f"line {node.lineno}: {node.func.attr}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_others_wrote_comes_in_by_one_way(path):
    """`gpubed.core.reading` bounds, parses and validates it, and says what repairs it."""
    name, tree = str(path.relative_to(SOURCE)), ast.parse(path.read_text())
    remedy = "read it with gpubed.core.reading, say, reading.file(path, hint).json(Model)"
    if name not in WAY_IN | BROUGHT:
        assert list(parses_by_itself(tree)) == [], remedy
    if name not in WAY_IN | BROUGHT | KERNELS:
        assert list(reads_by_itself(tree)) == [], remedy


@pytest.mark.parametrize(
    "text",
    [
        "import json\njson.loads(said)",
        "import yaml as y\ny.safe_load(said)",
        "from json import loads\nloads(said)",
        "Model.model_validate_json(said)",
    ],
)
def test_who_parses_by_himself_is_found(text):
    assert list(parses_by_itself(ast.parse(text)))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_user_interface_imports_rich(path):
    if path.parent != SOURCE / "cli":
        assert not [name for name in imports(path) if name.split(".")[0] == "rich"]


@pytest.mark.parametrize("path", BACKENDS, ids=lambda p: str(p.relative_to(SOURCE / "backends")))
def test_a_backend_is_bound_to_its_cluster_and_looks_no_project_up(path):
    name, tree = str(path.relative_to(SOURCE / "backends")), ast.parse(path.read_text())
    finds = any(isinstance(node, ast.Attribute) and node.attr == "find" for node in ast.walk(tree))
    looks_up = finds and "gpubed.core.paths.Project" in imports(path)
    assert looks_up is (name in LOOKS_THE_PROJECT_UP)


def reads_the_specification(path):
    """Yield how a module reads `cluster.yml`, or one of its copies, under whatever name.

    A `spec` that is no plan's is a path to it; within a text it is only told.
    """
    tree = ast.parse(path.read_text())
    yield from SPECIFICATION & set(imports(path))
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    told = {id(node) for text in texts for node in ast.walk(text)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == "cluster.yml":
            yield node.value
        if isinstance(node, ast.Attribute) and node.attr == "spec" and id(node) not in told:
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner.strip("_") != "plan":
                yield ast.unparse(node)


@pytest.mark.parametrize("path", BACKENDS, ids=lambda p: str(p.relative_to(SOURCE / "backends")))
def test_no_backend_reads_a_specification(path):
    """It is bound with what says how the testbed is reached; the rest gets the plan."""
    assert list(reads_the_specification(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "files.read(paths.spec)",
        "reading.file(self._paths.spec, 'restore it')",
        "where = self.paths\nwhere.spec.read_text()",
        "(paths.inventory / 'cluster.yml').open()",
        "from gpubed.core import located",
        "from gpubed.testbeds import made_on",
        "from gpubed.testbeds.made_on import note",
        "from gpubed.testbeds.specification import check",
        "from gpubed.testbeds import registry\nregistry.reach('static', paths)",
    ],
)
def test_who_reads_a_specification_is_found(tmp_path, text):
    (path := tmp_path / "module.py").write_text(text)
    assert list(reads_the_specification(path))


def test_a_hint_may_name_the_specification(tmp_path):
    (path := tmp_path / "module.py").write_text("f'restore {paths.spec}'\nlimits(self._plan.spec)")
    assert list(reads_the_specification(path)) == []


# Of `local` and `static`, which are words too, only where they are compared with.
NAMES_A_BACKEND = re.compile(
    r"virtual ?wall|openstack|gpulab|fed4fire|backend[._]type|gpubed_backend|spec\.backend\b"
    r"|backend\W{1,6}(local|static)\b|\b(local|static) backend",
    re.IGNORECASE,
)


def test_roles_and_playbooks_never_name_a_backend():
    """A role must not learn which testbed made its node."""
    found = []
    for path in [
        *ROOT.glob("roles/*/[!m]*/**/*"),
        *ROOT.glob("roles/*/meta/*"),
        *ROOT.glob("playbooks/**/*"),
    ]:
        if path.is_file() and path.suffix not in (".pyc", ".json"):
            text = path.read_text(errors="replace")
            found += [
                f"{path.relative_to(ROOT)}: {said[0]}" for said in NAMES_A_BACKEND.finditer(text)
            ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        "# as on Virtual Wall",
        "when: spec.backend.type == 'openstack'",
        "when: gpubed_backend == 'local'",
        '{% if backend == "static" %}',
    ],
)
def test_a_backend_that_is_named_is_found(planted):
    assert NAMES_A_BACKEND.search(planted)


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "cli" / "commands").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_every_verb_has_help_and_an_example(path):
    tree = ast.parse(path.read_text())
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    commands = [n for n in public if n.name == "command" or n.decorator_list]
    assert commands, f"{path.name} has neither `command` nor `app` with verbs"
    assert all(ast.get_docstring(command) for command in commands)
    examples = [
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "EXAMPLE"
    ]
    assert examples, f"{path.name} has no EXAMPLE"
    assert f"gpubed {path.stem}" in examples[0]


@pytest.mark.parametrize(
    "folder",
    sorted(p for p in (SOURCE / "backends").iterdir() if p.is_dir() and p.name != "__pycache__"),
    ids=lambda p: p.name,
)
def test_every_backend_is_complete(folder):
    for part in ("__init__.py", "config.py", "backend.py", "cluster.yml", "README.md"):
        assert (folder / part).is_file(), f"{folder.name} lacks {part}"


@pytest.mark.parametrize(
    "folder", sorted(p for p in (ROOT / "jobs").iterdir() if p.is_dir()), ids=lambda p: p.name
)
def test_every_job_is_complete(folder):
    for part in ("job.yml", "main.py", "README.md"):
        assert (folder / part).is_file(), f"{folder.name} lacks {part}"


def test_every_test_file_is_collected():
    """A file whose name pytest does not match would never run."""
    for path in (ROOT / "tests").rglob("*.py"):
        helper = path.name in ("conftest.py", "__init__.py", "__main__.py", "matrix.py")
        helper |= bool({"support", "testbeds", "own_work"} & {*path.parts})
        assert helper or path.name.startswith("test_"), path


def test_the_order_of_whole_clusters_names_files():
    text = (ROOT / "tests" / "e2e" / "conftest.py").read_text()
    order = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "ORDER"
    )
    assert len(set(order)) == len(order)
    assert not [name for name in order if not (ROOT / "tests" / "e2e" / f"{name}.py").is_file()]
    digits = [path.name for path in ROOT.glob("tests/**/test_[0-9]*.py")]
    assert digits == []
