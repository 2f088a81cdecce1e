"""What pip installs on nodes comes from no cache that others can write to.

The nodes of a machine share a folder for downloads. pip believes its own cache, also with
`--require-hashes`: a wheel that it takes for one of its own builds is not looked at.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.process

ROLES = Path(__file__).parents[2] / "roles"
NAME = "victim-1.0-py3-none-any.whl"
PARTS = {
    "METADATA": "Metadata-Version: 2.1\nName: victim\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


def tasks(node):
    """Yield every task below a node of YAML."""
    if isinstance(node, list):
        for each in node:
            yield from tasks(each)
    elif isinstance(node, dict):
        yield node
        yield from tasks(node.get("block", []))


def installers():
    """Return what roles call pip with, and in which environment, by role and task."""
    found = {}
    for path in sorted(ROLES.glob("*/tasks/**/*.yml")):
        for task in tasks(yaml.safe_load(path.read_text())):
            command = task.get("ansible.builtin.command")
            argv = command.get("argv") if isinstance(command, dict) else None
            if isinstance(argv, list) and argv and str(argv[0]).endswith("/pip"):
                found[f"{path.parts[-3]}: {task['name']}"] = argv, task.get("environment", "")
    return found


def write_wheel(folder, program):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        archive.writestr("victim.py", program)
        for part, text in PARTS.items():
            archive.writestr(f"victim-1.0.dist-info/{part}", text)
    return folder / NAME


@pytest.fixture
def cache(tmp_path):
    """A cache in which somebody else has put a program of his under the right one's checksum."""
    right = write_wheel(tmp_path / "index", "print('right')")
    checksum = hashlib.sha256(right.read_bytes()).hexdigest()
    (tmp_path / "lock.txt").write_text(f"victim==1.0 --hash=sha256:{checksum}\n")
    find = (
        "import sys; from pip._internal.cache import SimpleWheelCache as Cache\n"
        "from pip._internal.models.link import Link\n"
        "print(Cache(sys.argv[1]).get_path_for_link(Link(sys.argv[2])))"
    )
    asked = [sys.executable, "-c", find, str(tmp_path / "cache"), right.as_uri()]
    place = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    write_wheel(Path(place), "print('somebody else')")
    origin = {"url": right.as_uri(), "archive_info": {"hashes": {"sha256": checksum}}}
    Path(place, "origin.json").write_text(json.dumps(origin))
    return tmp_path / "cache"


def installed(folder, *options):
    """Install from the lock with pip and the poisoned cache; return what the program prints."""
    venv.create(folder / "venv")
    python = str(folder / "venv/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    where = ["--no-index", "--find-links", str(folder / "index"), "-r", str(folder / "lock.txt")]
    environment = {**os.environ, "PIP_CACHE_DIR": str(folder / "cache")}
    subprocess.run([*pip, *options, *where], env=environment, check=True)
    shown = [python, "-c", "import victim"]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip()


def test_the_installer_of_nodes_does_not(cache, tmp_path):
    argv, _ = installers()["python_env: Install uv from its lock"]
    options = argv[argv.index("install") + 1 : argv.index("--requirement")]
    assert installed(tmp_path, *options) == "right"


@pytest.mark.parametrize(("argv", "environment"), installers().values(), ids=installers())
def test_no_role_lets_pip_have_a_cache(argv, environment):
    assert "--no-cache-dir" in argv
    assert "PIP_CACHE_DIR" not in str(environment)
