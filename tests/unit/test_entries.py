"""What lists itself: a module with the entry point is one, a helper is in nobody's way."""

import shutil
import subprocess
import sys

import pytest

from gpubed.core import entries
from support.cluster import ROOT

SOURCE = ROOT / "src" / "gpubed"


@pytest.fixture
def copy(tmp_path):
    """A copy of gpubed with helpers among the entries; runs Python there."""
    shutil.copytree(SOURCE, tmp_path / "gpubed", ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("jobs/launchers/words.py", "cli/commands/sharing.py", "cli/commands/_shared.py"):
        (tmp_path / "gpubed" / name).write_text('"""Helps others."""\n\nCOMMAND = "command"\n')

    def python(code, *words):
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    return python


@pytest.mark.process
def test_a_helper_beside_verbs_leaves_all_of_them_as_they_are(copy):
    code = "import sys; from gpubed.cli import main; sys.exit(main())"
    said = copy(code, "--help")
    assert (said.returncode, "Traceback" in said.stderr) == (0, False), said.stderr
    assert "bench" in said.stdout
    assert "sharing" not in said.stdout
    assert "No such command" in copy(code, "sharing").stderr


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("def create():\n    ...\n", True),
        ("create = other\n", True),
        ('"""Words.\n\ncreate: makes one\ncreate(it)\n"""\n', False),
        ("create: int = 1\n", True),
        ("def created():\n    ...\n", False),
        ("class Made:\n    def create(self):\n        ...\n", False),
        ("# def create():\n", False),
        ("from elsewhere import create\n", False),
    ],
)
def test_an_entry_has_its_entry_point_at_the_top(tmp_path, text, is_one):
    (tmp_path / "one.py").write_text(text)
    (tmp_path / "_two.py").write_text("def create():\n    ...\n")
    assert entries.names(tmp_path, "create") == (("one",) if is_one else ())
