"""The house: who may import whom, where what others wrote comes in, and what is complete."""

import ast
import shutil
from pathlib import Path

import pytest

from support import house

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpubed"
MODULES = sorted(SOURCE.rglob("*.py"))
BACKENDS = sorted((SOURCE / "backends").rglob("*.py"))
# By these, and by `made_on.specification`, a module reads `cluster.yml`.
SPECIFICATION = {"gpubed.core.located", "gpubed.testbeds.specification"}
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
# Where a backend reads `cluster.yml`: in one module, which says how the testbed is reached.
READS_THE_SPECIFICATION = {
    "gpulab": "testbed.py",
    "openstack": "cloud.py",
    "static": "named.py",
    "virtualwall": "connection.py",
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
    "backends/virtualwall/rspec.py",
    "cli/commands/init.py",
    "cli/outline.py",
    "core/paths.py",
    "spec/placeholders.py",
    "recipes/recipe.py",
    "configuration/roles.py",
}
KERNELS = {
    "backends/local/doctor.py",
    "backends/local/vm/accelerator.py",
    "engines/embedded/lifeline.py",
    "engines/embedded/locks.py",
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
        ("newcomer.py", "", "newcomer.py has no floor"),
    ],
)
def test_what_breaks_the_rule_is_found(tmp_path, planted, text, found):
    tree = shutil.copytree(SOURCE, tmp_path / "gpubed", ignore=shutil.ignore_patterns("*.pyc"))
    with (tree / planted).open("a") as file:
        file.write(f"\n{text}\n")
    assert [fault for fault in house.faults(tree) if found in fault]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_others_wrote_comes_in_by_one_way(path):
    """`gpubed.core.reading` bounds, parses and validates it, and says what repairs it."""
    name = str(path.relative_to(SOURCE))
    if name in WAY_IN:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, owner = node.func.attr, getattr(node.func.value, "id", "")
            parses = called in PARSERS and (owner in OF_PARSERS or called.endswith("_json"))
            assert not parses or name in BROUGHT, f"line {node.lineno}: {owner}.{called}"
            reads = called in READS and name not in BROUGHT | KERNELS
            assert not reads, f"line {node.lineno}: {called}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_user_interface_imports_rich(path):
    if path.parent != SOURCE / "cli":
        assert not [name for name in imports(path) if name.split(".")[0] == "rich"]


@pytest.mark.parametrize("path", BACKENDS, ids=lambda p: str(p.relative_to(SOURCE / "backends")))
def test_a_backend_gets_its_cluster(path):
    """Bound to it, it looks no project up, and reads its specification at one place."""
    name = str(path.relative_to(SOURCE / "backends"))
    tree = ast.parse(path.read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    finds = any(function.endswith("Project.find") for function in called)
    assert finds is (name in LOOKS_THE_PROJECT_UP)
    reads = "made_on.specification" in called or SPECIFICATION & set(imports(path))
    assert not reads or READS_THE_SPECIFICATION.get(path.parent.name) == path.name


def test_roles_and_playbooks_never_name_a_backend():
    """A role must not learn which testbed made its node."""
    names = {path.name for path in (SOURCE / "backends").iterdir()} - {"local", "static"}  # words
    for path in [*ROOT.glob("roles/*/tasks/**/*.yml"), *ROOT.glob("playbooks/*.yml")]:
        found = [name for name in ("backend", *names) if name in path.read_text()]
        assert not found, f"{path}: {found}"


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "cli" / "commands").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_every_verb_has_help_and_an_example(path):
    tree = ast.parse(path.read_text())
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    commands = [n for n in public if n.name == "command" or n.decorator_list]
    assert commands
    assert all(ast.get_docstring(command) for command in commands)
    example = next(
        n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "EXAMPLE"
    )
    assert f"gpubed {path.stem}" in ast.literal_eval(example.value)


@pytest.mark.parametrize(
    "folder",
    sorted(p for p in (SOURCE / "backends").iterdir() if (p / "__init__.py").is_file()),
    ids=lambda p: p.name,
)
def test_every_backend_is_complete(folder):
    for part in ("config.py", "backend.py", "README.md"):
        assert (folder / part).is_file(), f"{folder.name} lacks {part}"
    assert (ROOT / "templates" / "cluster" / f"{folder.name}.yml").is_file(), (
        "`gpubed init` needs it"
    )


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
        assert helper or path.name.startswith("test_") or "support" in path.parts, path


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
