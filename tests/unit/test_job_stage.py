"""Staging: copies are right, resumed and proved."""

import hashlib
from pathlib import Path

import pytest

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/stage"


@pytest.fixture(scope="module")
def staging():
    return by_path.load(JOB / "staging.py", "stage_staging")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset"
    (folder / "a").mkdir(parents=True)
    (folder / "a/one").write_bytes(b"1" * 100_000)
    (folder / "two").write_bytes(b"2" * 50)
    return folder


def manifest(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def test_all_files_arrive(staging, dataset, tmp_path):
    done = staging.stage(dataset, tmp_path / "to", manifest(dataset), 2)
    assert manifest(tmp_path / "to") == manifest(dataset)
    assert sum(file.bytes for file in done) == 100_050
    assert all(file.right for file in done)


def test_a_second_run_copies_nothing(staging, dataset, tmp_path):
    staging.stage(dataset, tmp_path / "to", manifest(dataset), 2)
    again = staging.stage(dataset, tmp_path / "to", manifest(dataset), 2)
    assert sum(file.bytes for file in again) == 0


def test_an_interrupted_file_goes_on_where_it_ended(staging, dataset, tmp_path):
    (tmp_path / "to/a").mkdir(parents=True)
    (tmp_path / "to/a/.one.part").write_bytes(b"1" * 60_000)
    done = {f.name: f for f in staging.stage(dataset, tmp_path / "to", manifest(dataset), 1)}
    assert done["a/one"].bytes == 40_000
    assert manifest(tmp_path / "to") == manifest(dataset)


def test_a_part_of_another_file_is_thrown_away(staging, dataset, tmp_path):
    (tmp_path / "to/a").mkdir(parents=True)
    (tmp_path / "to/a/.one.part").write_bytes(b"x" * 60_000)
    assert all(f.right for f in staging.stage(dataset, tmp_path / "to", manifest(dataset), 1))
    assert manifest(tmp_path / "to") == manifest(dataset)


def test_a_changed_copy_is_replaced(staging, dataset, tmp_path):
    staging.stage(dataset, tmp_path / "to", manifest(dataset), 1)
    (tmp_path / "to/two").write_bytes(b"3" * 50)
    assert all(f.right for f in staging.stage(dataset, tmp_path / "to", manifest(dataset), 1))
    assert manifest(tmp_path / "to") == manifest(dataset)


def test_what_differs_from_the_manifest_is_named_and_not_kept(staging, dataset, tmp_path):
    wanted = {**manifest(dataset), "two": "0" * 64}
    done = {f.name: f for f in staging.stage(dataset, tmp_path / "to", wanted, 1)}
    assert not done["two"].right
    assert list(manifest(tmp_path / "to")) == ["a/one"]


def test_the_manifest_is_that_of_sha256sum(staging, dataset):
    import subprocess

    text = subprocess.run(
        "find . -type f -printf '%P\\n' | xargs sha256sum",
        shell=True,
        cwd=dataset,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert staging.read_manifest(text) == manifest(dataset)
