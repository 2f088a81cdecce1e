"""Every recipe is whole, and its lock is what it says it is."""

import hashlib
import re
from pathlib import Path

import pytest
import yaml

RECIPES = Path(__file__).parents[2] / "src/gpubed/recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yml"))
FILES = {"recipe.yml", "requirements.in", "requirements.txt"}


@pytest.fixture(params=NAMES)
def folder(request):
    return RECIPES / request.param


@pytest.fixture
def recipe(folder):
    return yaml.safe_load((folder / "recipe.yml").read_text())


@pytest.fixture
def lock(folder):
    return (folder / "requirements.txt").read_text()


def requirements(lock):
    """Name, version and number of hashes of each entry of a lock."""
    joined = re.sub(r"#.*", "", lock).replace("\\\n", " ")
    for line in filter(None, map(str.strip, joined.splitlines())):
        head = re.match(r"([a-z0-9-]+)==([^ ;]+)", line)
        assert head, f"not an exact version: {line[:80]}"
        yield head[1], head[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line))


def test_there_are_recipes_with_and_without_gpus():
    assert {"cpu", "cuda13"} <= set(NAMES)


def test_a_recipe_folder_holds_its_three_files(folder):
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_recipe_is_named_after_its_folder(folder, recipe):
    assert recipe["schema"] == "gpubed/recipe/1"
    assert recipe["name"] == folder.name


def test_the_checksum_of_the_lock_is_right(lock, recipe):
    assert hashlib.sha256(lock.encode()).hexdigest() == recipe["lock"]["sha256"]


def test_every_entry_of_a_lock_has_hashes(lock):
    entries = list(requirements(lock))
    assert len(entries) > 50
    assert [name for name, _, hashes in entries if not hashes] == []


def test_a_lock_names_no_place(lock):
    assert not re.search(r"://|--(extra-)?index|--find-links|(^|\s)/\w", lock)


def test_a_lock_covers_what_was_wanted(folder, lock):
    wanted = re.findall(r"^([a-z0-9-]+)", (folder / "requirements.in").read_text(), re.MULTILINE)
    assert set(wanted) <= {name for name, _, _ in requirements(lock)}


def test_torch_has_the_version_of_the_recipe(lock, recipe):
    assert {version for name, version, _ in requirements(lock) if name == "torch"} == {
        recipe["torch"]
    }


def test_nccl_needs_a_compiler_of_the_recipes_cuda(lock, recipe):
    compilers = {version for name, version, _ in requirements(lock) if name == "nvidia-cuda-nvcc"}
    if recipe["horovod"]["gpu_operations"] == "none":
        assert recipe["cuda"] is None
        assert not compilers
    else:
        assert {".".join(version.split(".")[:2]) for version in compilers} == {recipe["cuda"]}
        assert recipe["gpus"]["architectures"]


def test_horovod_has_a_controller_and_a_pinned_source(recipe):
    horovod = recipe["horovod"]
    assert horovod["mpi"] or horovod["gloo"]
    assert re.fullmatch(r"[0-9a-f]{64}", horovod["sha256"])
