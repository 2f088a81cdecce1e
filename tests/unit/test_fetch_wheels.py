"""What nodes of other clusters write to the shared store of wheels does nobody any harm."""

import hashlib
import importlib.util
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpubed.core.paths import assets

NAME = "toy-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def program():
    path = assets() / "roles/python_env/files/fetch_wheels.py"
    spec = importlib.util.spec_from_file_location("fetch_wheels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def there(tmp_path):
    """A lock, a store that has what it names, and a folder of one's own."""
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy.py", "print('good')")
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    kept = tmp_path / "store" / checksum / NAME
    kept.parent.mkdir(parents=True)
    wheel.rename(kept)
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"absent==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n"
        f"toy==1.0 \\\n    --hash=sha256:{checksum}\n    # via nobody\n"
    )
    return lock, kept, tmp_path / "out"


def fetch(program, monkeypatch, there):
    """Run the program; return what it had to download."""
    asked = []
    monkeypatch.setattr(program, "download", lambda lines, *_: asked.extend(lines))
    lock, kept, out = there
    program.fetch(lock, kept.parents[1], out)
    return [line.split()[0] for line in asked]


def test_a_wheel_of_the_store_is_taken(program, monkeypatch, there):
    assert fetch(program, monkeypatch, there) == []
    assert (there[2] / NAME).read_bytes() == there[1].read_bytes()


def test_a_wheel_that_somebody_altered_is_not(program, monkeypatch, there):
    there[1].write_bytes(there[1].read_bytes() + b"evil")
    assert fetch(program, monkeypatch, there) == ["toy==1.0"]
    assert not list(there[2].iterdir())
    assert not there[1].exists()


def test_a_link_of_others_leads_nowhere(program, monkeypatch, there, tmp_path):
    """What is downloaded is added to the store; pip is a STAND-IN."""
    lock, kept, out = there
    victim, wheel = tmp_path / "authorized_keys", kept.read_bytes()
    victim.write_text("mine")
    kept.unlink()
    kept.symlink_to(victim)

    def download(command, **_):
        (Path(command[command.index("--dest") + 1]) / NAME).write_bytes(wheel)

    monkeypatch.setattr(program.subprocess, "run", download)
    program.fetch(lock, kept.parents[1], out)
    assert victim.read_text() == "mine"
    assert kept.read_bytes() == wheel
    assert (out / NAME).read_bytes() == wheel


def test_two_who_add_the_same_wheel_at_once_both_succeed(program, tmp_path):
    wheel = tmp_path / NAME
    wheel.write_bytes(b"x" * 4_000_000)
    kept = tmp_path / "store" / NAME
    kept.parent.mkdir()
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(program.put, wheel, kept) for _ in range(32)]:
            done.result()
    assert kept.read_bytes() == wheel.read_bytes()
    assert list(kept.parent.iterdir()) == [kept]
