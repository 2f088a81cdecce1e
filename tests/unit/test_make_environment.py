"""Environments on nodes, from a lock or with links to another's packages. uv is real."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpubed.core.paths import assets

pytestmark = pytest.mark.process

ROLE = assets() / "roles/python_env"
PROGRAM = ROLE / "files/make_environment.py"
FILES = {
    "toy/__init__.py": "def main():\n    import sys\n    print(sys.prefix)\n",
    "toy-1.0.data/data/share/toy/data.txt": "data\n",
    "many/toy/part.txt": "of a namespace\n",
    "toy-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
    "toy-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "toy-1.0.dist-info/entry_points.txt": "[console_scripts]\ntoy = toy:main\n",
}


def make(*arguments):
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments, sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """An environment from a lock, whose one wheel is in the store."""
    folder = tmp_path_factory.mktemp("base")
    wheel = folder / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr(
            "toy-1.0.dist-info/RECORD",
            "".join(f"{name},,\n" for name in [*FILES, "toy-1.0.dist-info/RECORD"]),
        )
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "store" / checksum).mkdir(parents=True)
    wheel.rename(folder / "store" / checksum / wheel.name)
    lock = folder / "lock"
    lock.write_text(f"toy==1.0 --hash=sha256:{checksum}\n")
    done = make("lock", lock, folder / "store", folder / "made")
    assert done.returncode == 0, done.stderr
    return folder / "made"


def said(program, *arguments):
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_lock_is_installed_and_no_wheel_is_left(base):
    assert said(base / "bin/toy") == str(base)
    assert not (base / ".wheels").exists()


def test_packages_are_links_to_the_others(base, tmp_path):
    (base / ".complete").touch()
    target = tmp_path / "target"
    assert make("like", base, target).returncode == 0
    python = target / "bin/python"
    found = Path(said(python, "-c", "import toy; print(toy.__file__)"))
    assert found.is_relative_to(target)
    assert found.resolve().is_relative_to(base)
    # JupyterLab serves no file that is a link.
    assert (target / "share/toy/data.txt").resolve() == target / "share/toy/data.txt"
    assert not (target / ".complete").exists(), "it says so of the base alone"


def test_who_adds_a_package_sees_those_that_are_links(base, tmp_path):
    """And may add to a namespace of theirs."""
    target = tmp_path / "target"
    make("like", base, target)
    uv = Path(sys.executable).with_name("uv")
    assert "toy" in said(uv, "pip", "list", "--python", target / "bin/python")
    site = next(target.glob("lib/python*/site-packages"))
    (site / "many/toy/more.txt").touch()
    assert not list(base.rglob("more.txt"))


def test_what_is_installed_later_is_not_the_bases(base, tmp_path):
    target = tmp_path / "target"
    make("like", base, target)
    before = sorted(base.rglob("*"))
    site = next(target.glob("lib/python*/site-packages"))
    (site / "later").mkdir()
    (site / "later/__init__.py").touch()
    assert said(target / "bin/python", "-Bc", "import toy, later") == ""
    assert sorted(base.rglob("*")) == before


def test_what_an_earlier_attempt_left_goes(base, tmp_path):
    target = tmp_path / "target"
    make("like", base, target)
    (target / "bin/left").touch()
    assert make("like", base, target).returncode == 0
    assert not (target / "bin/left").exists()
