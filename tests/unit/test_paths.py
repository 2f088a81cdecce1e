"""Where gpubed keeps its files, and who may look there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpubed.cli import options
from gpubed.core import paths
from gpubed.core.errors import PrerequisiteMissing, UsageError


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_nobody_else_gets_to_what_nodes_write(monkeypatch, tmp_path):
    """Root of a node can leave a set-uid program there."""
    monkeypatch.delenv("GPUBED_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    former = tmp_path / "gpubed"
    former.mkdir(mode=0o755)
    assert mode(paths.private_cache()) == 0o700
    assert paths.private_cache() == former


def test_a_folder_that_the_user_names_keeps_its_mode(monkeypatch, tmp_path):
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("GPUBED_CACHE", str(chosen))
    assert mode(paths.private_cache()) == 0o700, "it is new"
    chosen.chmod(0o755)
    assert mode(paths.private_cache()) == 0o755


@pytest.mark.parametrize("said", ["lab", "lab/", "./lab", "inventories/lab", "inventories//lab/"])
def test_every_spelling_of_a_cluster_leads_to_the_same_one(monkeypatch, tmp_path, said):
    """`down lab/` removed what is known of lab, and none of its nodes."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventories/lab").mkdir(parents=True)
    (tmp_path / "inventories/lab/cluster.yml").touch()
    assert options.find(said).name == "lab"
    monkeypatch.chdir(tmp_path / "inventories")
    assert options.find("lab/").name == "lab"


@pytest.mark.parametrize("said", ["../lab", "other/lab", "inventories/../lab/"])
def test_a_path_to_something_else_is_no_cluster(monkeypatch, tmp_path, said):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("lab", "inventories/other/lab"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cluster.yml").touch()
    with pytest.raises(UsageError, match="there is no cluster"):
        options.find(said)


def test_a_project_of_another_user_says_whose_it_is(monkeypatch, tmp_path):
    """It said that the passphrase cannot be written, and to make its folder writable."""
    secret = tmp_path / ".gpubed/pulumi"
    secret.mkdir(mode=0o700, parents=True)
    monkeypatch.setattr(paths.os, "access", lambda place, _: place != secret)
    with pytest.raises(PrerequisiteMissing, match=f"pulumi belongs to {secret.owner()}") as refused:
        paths.Project(tmp_path).require_states()
    assert (refused.value.hint or "").endswith(f" {tmp_path / '.gpubed'}")


FORMER = '''"""A cluster: specification → plan → the testbed's resources → configuration.

Run by `pulumi up -s <cluster>` and by `gpubed up <cluster>` alike.
"""

import pulumi

from gpubed.cluster_drivers import configure, identity
from gpubed.paths import Project
from gpubed.plan import from_file
from gpubed.registry import backend

paths = Project.find().cluster(pulumi.get_stack())
cluster = from_file(paths.spec)
ident = identity(cluster)
allocation = backend(cluster.backend).component(cluster, ident["uuid"], ident["public_key"])
configure(cluster, allocation)
pulumi.export("allocation", allocation)
'''


@pytest.mark.process
def test_every_program_that_was_ever_committed_is_known(tmp_path):
    """Else who began with it is told to have changed it."""

    def git(*words: str) -> bytes:
        command = ["git", "-C", str(paths.assets()), *words]
        return subprocess.run(command, capture_output=True, check=True).stdout

    try:
        is_shallow = git("rev-parse", "--is-shallow-repository").strip() != b"false"
    except (subprocess.CalledProcessError, FileNotFoundError):
        is_shallow = True
    if is_shallow:
        pytest.skip("this is no clone with its history")
    name = "stacks/cluster/__main__.py"
    commits = git("log", "--format=%H", "--", name).decode().split()
    current = (paths.assets() / name).read_bytes()
    program = tmp_path / name
    program.parent.mkdir(parents=True)
    for commit in commits:
        program.write_bytes(git("show", f"{commit}:{name}"))
        paths.Project(tmp_path).prepare()
        assert program.read_bytes() == current, commit


def test_the_program_of_a_former_version_is_replaced(tmp_path):
    project = paths.Project(tmp_path)
    project.prepare()
    program = tmp_path / "stacks" / "cluster" / "__main__.py"
    ours = program.read_text()
    program.write_text(FORMER)
    project.prepare()
    assert program.read_text() == ours
    program.write_text(f"{ours}\npulumi.export('more', 1)\n")
    project.prepare()
    assert "more" in program.read_text(), "what a user adds to ours is kept"
    program.write_text(f"{FORMER}\npulumi.export('more', 1)\n")
    with pytest.raises(UsageError, match="was changed, and is of a former version"):
        project.prepare()


@pytest.mark.parametrize("root", ["", "/"], ids=["nearest", "named"])
def test_a_current_folder_that_was_removed_is_named(monkeypatch, tmp_path, root):
    """It was a traceback; names of clusters are paths as seen from there, wherever the root is."""
    monkeypatch.setenv("GPUBED_ROOT", root)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the current folder was removed") as refused:
        options.find("lab")
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("cd ")
