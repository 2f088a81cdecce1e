"""What nodes of other clusters write to the shared store of wheels does nobody any harm."""

import hashlib
import importlib.util
import subprocess
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


def test_nor_is_one_that_changes_while_it_is_looked_at(program, monkeypatch, there):
    def altering(source, target):
        target.write_bytes(source.read_bytes() + b"evil")

    monkeypatch.setattr(program.shutil, "copyfile", altering)
    assert fetch(program, monkeypatch, there) == ["toy==1.0"]
    assert not list(there[2].iterdir())


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


def test_a_draft_of_others_is_no_wheel_and_stays_theirs(program, monkeypatch, there):
    """Also one of a former version, which gave drafts the wheel's name behind a dot."""
    former = there[1].rename(there[1].with_name(f".{NAME}"))
    draft = there[1].with_name("tmpdraft.partial")
    draft.write_bytes(b"half")
    assert fetch(program, monkeypatch, there) == ["toy==1.0"]
    assert (former.exists(), draft.exists()) == (True, True)


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


@pytest.mark.process
def test_what_other_streams_brought_is_kept_where_one_fails(program, monkeypatch, tmp_path):
    registry, store, out = tmp_path / "registry", tmp_path / "store", tmp_path / "out"
    registry.mkdir()
    out.mkdir()
    lines = []
    for name in (f"toy{number}" for number in range(6)):
        wheel = registry / f"{name}-1.0-py3-none-any.whl"
        about = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0"
            )
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        lines.append(f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    (registry / "toy1-1.0-py3-none-any.whl").unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    with pytest.raises(subprocess.CalledProcessError):
        program.download(lines, store, out)
    kept = {path.name.partition("-")[0] for path in store.glob("*/*.whl")}
    assert {"toy0", "toy2", "toy3", "toy4"} <= kept  # toy5 comes after toy1, in the same stream
    assert "toy1" not in kept
