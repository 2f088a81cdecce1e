"""Root of another cluster's node may leave links in the cache that clusters share.

The roles' own tasks run here, on this machine; what leads them there is a STAND-IN's.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.process

ROLES = Path(__file__).parents[2] / "roles"
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
WHEEL = "horovod-1-abc/horovod.whl"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.fixture
def play(tmp_path: Path, cache: Path) -> Any:
    """A function that runs some of a role's tasks, and returns what is said."""
    (tmp_path / "own").mkdir()
    values = {
        "ansible_python_interpreter": sys.executable,
        "gpubed_user": getpass.getuser(),
        "python_env_cache": str(cache),
        "python_env_root": str(tmp_path / "env"),
        "__python_env_path": str(tmp_path / "env/one"),
        "horovod_cache": str(cache),
        "horovod_wheels": str(tmp_path / "shared-wheels"),
        "__horovod_wheel": WHEEL,
        "__horovod_wanted": WHEEL.partition("/")[0],
        "__horovod_own": str(tmp_path / "own" / WHEEL),
    }

    def run(file: str, *names: str) -> str:
        found = yaml.safe_load((ROLES / file).read_text())
        tasks = [task for task in found if task["name"] in names]
        assert [task["name"] for task in tasks] == list(names)
        for task in tasks:
            # Who runs the tests is who the task would become.
            task.pop("become", None)
            task.pop("become_user", None)
            # What is not in the cache is this machine's.
            task["loop"] = [item for item in task.get("loop", ()) if "_cache }}" in str(item)]
            task["loop"] or task.pop("loop")
        book = tmp_path / "book.yml"
        plays = [{"hosts": "localhost", "gather_facts": False, "vars": values, "tasks": tasks}]
        book.write_text(yaml.safe_dump(plays))
        command = [PLAYBOOK, "--inventory=localhost,", "--connection=local", book]
        (tmp_path / "ansible.cfg").touch()
        environment = {**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout

    return run


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the node with a file that its accounts may not read."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "key").write_text("secret")
    (folder / "key").chmod(0o600)
    return folder


def test_wheels_are_copied_through_no_link(play: Any, cache: Path, private: Path) -> None:
    names = ("Look for a wheel", "Make the folder of the own copy", "Take a copy")
    wheel = cache / "wheels" / WHEEL
    own = private.parent / "own" / WHEEL
    wheel.parent.mkdir(parents=True)
    wheel.symlink_to(private / "key")
    assert "failed=0" in play("horovod/tasks/wheel.yml", *names)
    assert not own.exists()
    wheel.unlink()
    wheel.write_bytes(b"a wheel")
    assert "failed=0" in play("horovod/tasks/wheel.yml", *names)
    assert own.read_bytes() == b"a wheel"


@pytest.mark.parametrize(
    ("link", "file", "names"),
    [
        ("python", "python_env/tasks/install.yml", ["Make the folders"]),
        (
            "wheels",
            "horovod/tasks/build.yml",
            ["Make the folder for built wheels", "Make the folder for this one"],
        ),
    ],
)
def test_no_folder_is_opened_through_a_link(
    play: Any, cache: Path, private: Path, link: str, file: str, names: list[str]
) -> None:
    (cache / link).symlink_to(private)
    assert "already exists as a link" in play(file, *names)
    assert private.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in private.iterdir()] == ["key"]
