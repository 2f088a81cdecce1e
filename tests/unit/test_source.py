"""Which files of a command's folder travel to the nodes."""

import os
import subprocess

import pytest

from gpubed.core.errors import UsageError
from gpubed.jobs import source
from gpubed.jobs.runs import record

pytestmark = pytest.mark.process

TREE = ("train.py", "lib/model.py", "data/big.bin", "notes.txt", ".env", "-odd name\n.py")


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path):
    for name in TREE:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "mine"


def test_all_of_a_plain_folder_travels_but_its_virtual_environment(folder):
    for name in ("venv/pyvenv.cfg", "venv/bin/python", "lib/__pycache__/model.pyc", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "latest").symlink_to("data")
    os.mkfifo(folder / "pipe")
    assert source.files(folder) == sorted([*TREE, "latest"])


def test_git_says_what_travels(folder, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "part.py").write_text("")
    for repository in (library, folder):
        git(repository, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "part")
    git(folder, "submodule", "add", str(library), "library")
    (folder / ".gitignore").write_text("data\n.env\n")
    git(folder, "add", ".")
    (folder / "new.py").write_text("not added yet")
    (folder / "notes.txt").unlink()
    kept = {*TREE, "new.py", ".gitignore", ".gitmodules", "library/part.py"}
    assert source.files(folder) == sorted(kept - {"data/big.bin", ".env", "notes.txt"})
    assert source.files(folder / "lib") == ["model.py"]


def test_what_is_not_needed_there_can_be_named(folder):
    (folder / source.IGNORE).write_text("# large\n/data/\n*.txt\n!notes.txt\n")
    assert source.files(folder) == sorted({*TREE, source.IGNORE} - {"data/big.bin"})


def test_a_change_of_what_travels_changes_the_checksum(folder):
    names = ["train.py", "link"]
    (folder / "link").symlink_to("notes.txt")
    before = record.sha256_of_files(folder, names)
    (folder / "notes.txt").write_text("changed, and not sent")
    assert record.sha256_of_files(folder, names) == before
    (folder / "train.py").write_text("changed")
    assert record.sha256_of_files(folder, names) != before


@pytest.mark.parametrize(
    ("command", "name", "alone"),
    [
        (["python", "train.py", "--lr", "0.1"], "train", False),
        (["./scripts/my run.sh"], "my-run", False),
        (["torchrun", "--max-restarts=1", "train.py"], "train", True),
        (["python3", "-m", "torch.distributed.run", "a.py"], "a", True),
        (["nvidia-smi", "-L"], "nvidia-smi", False),
        (["/"], "command", False),
    ],
)
def test_a_command_has_a_name_and_a_way_to_start(command, name, alone):
    assert source.called(command) == name
    assert source.starts_ranks(command) is alone


def test_a_script_that_does_not_travel_is_refused(folder):
    names = source.files(folder)
    (folder / "here.py").write_text("")
    for text in (
        "python -u ./train.py",
        "python lib/../train.py",
        "python scripts/x.py",
        "python -m pkg --out x.py",
        "sh -c x.py",
        "python /opt/x.py",
    ):
        source.require_script(text.split(), folder, [*names, "train.py", "scripts"])
    with pytest.raises(UsageError, match="is not copied to the nodes") as caught:
        source.require_script(["torchrun", "trian.py"], folder, [*names, "train.py"])
    assert "train.py" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        source.require_script(["python3", "here.py"], folder, names)
    assert "excludes it" in caught.value.hint


def test_a_repository_within_travels_and_a_submodule_that_is_not_here_is_named(folder, tmp_path):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "mine")
    (folder / "nested").mkdir()
    git(folder / "nested", "init", "-q")
    (folder / "nested" / "part.py").write_text("")
    assert "nested/part.py" in source.files(folder)
    git(folder / "nested", "add", ".")
    git(folder / "nested", "commit", "-qm", "part")
    git(folder, "submodule", "add", "./nested", "library")
    git(folder, "commit", "-qm", "library")
    git(tmp_path, "clone", str(folder), "clone")
    with pytest.raises(UsageError, match="submodule library is missing"):
        source.files(tmp_path / "clone")


def test_a_pattern_that_git_would_not_take_is_refused(folder):
    (folder / source.IGNORE).write_text("!\n")
    with pytest.raises(UsageError, match=source.IGNORE):
        source.files(folder)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train.py", "--lr=1"], "python train.py --lr=1"),
        (["python", "../other/train.py"], "only that folder is copied"),
        (["python", "trian.py"], "did you mean 'train.py'"),
    ],
)
def test_a_script_elsewhere_is_refused_with_what_to_do(folder, words, fix):
    with pytest.raises(UsageError) as refused:
        source.require_script(words, folder, source.files(folder))
    assert fix in refused.value.hint
