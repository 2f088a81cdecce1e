"""Every recipe is whole, and its lock is what it says it is."""

import re
from pathlib import Path

import pytest
import yaml

from gpubed.checks.gpu_proof import GPU, Figure, Proof
from gpubed.checks.software import drift, on_node
from gpubed.recipes import recipe as recipes
from support.samples import sample_allocation, sample_plan

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
def loaded(folder):
    return recipes.load(folder.name)


@pytest.fixture
def lock(folder):
    return (folder / "requirements.txt").read_text()


def test_a_recipe_folder_holds_its_files(folder, loaded):
    measured = {"architectures.json"} if loaded.gpus.architectures else set()
    assert {path.name for path in folder.iterdir()} == FILES | measured


def test_every_entry_of_a_lock_has_hashes(loaded):
    entries = loaded.locked()
    assert len(entries) > 50
    assert [str(entry) for entry in entries if not entry.hashes] == []


def test_a_lock_names_no_place(lock):
    assert not re.search(r"://|--(extra-)?index|--find-links|(^|\s)/\w", lock)


def test_the_lock_brings_cuda_and_the_compiler_that_the_recipe_says(loaded):
    names = {"nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"}
    runtimes = {e.version for e in loaded.locked() if e.name in names}
    compilers = {e.version for e in loaded.locked() if e.name == "nvidia-cuda-nvcc"}
    if loaded.cuda is None:
        assert (loaded.compiler, loaded.gpus, compilers) == (None, recipes.Gpus(), set())
    else:
        assert {".".join(version.split(".")[:2]) for version in runtimes} == {loaded.cuda}
        assert bool(compilers) is (loaded.compiler == "lock")
        assert loaded.gpus.architectures
        assert loaded.gpus.driver


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ("3.7", []),
        ("6.1", ["cuda12"]),
        ("7.0", ["cuda12"]),
        ("8.9", ["cuda12", "cuda13"]),
        ("9.0", ["cuda12", "cuda13"]),
        ("10.3", ["cuda13"]),
    ],
    ids=["K80", "P40", "V100", "L40", "H200", "B300"],
)
def test_recipes_serve_generations(capability, names):
    assert recipes.serving(capability) == names


PYTHON = {"python_full_version": "3.11.2", "sys_platform": "linux", "platform_machine": "x86_64"}
MARKERS = {**PYTHON, "implementation_name": "cpython", "os_name": "posix", "python_version": "3.11"}
MARKERS["platform_python_implementation"] = "CPython"


@pytest.fixture
def installed(loaded):
    """What a node has whose environment was made from the recipe."""
    entries = {e.name: e.version for e in loaded.locked() if e.applies(MARKERS)}
    return {**entries, "horovod": loaded.horovod.version}


def test_another_version_a_missing_and_a_strange_package_are_drift(loaded, installed):
    changed = {**installed, "numpy": "1.26.4", "leftpad": "1.0"}
    del changed["cmake"]
    cmake, numpy = installed["cmake"], installed["numpy"]
    assert drift(loaded, changed, MARKERS) == [
        f"cmake is missing, the recipe has {cmake}",
        "leftpad is 1.0, the recipe has none",
        f"numpy is 1.26.4, the recipe has {numpy}",
    ]


NODE = sample_allocation(sample_plan()).nodes[0].model_copy(update={"gpus": 1})


def gpu_checks(recipe, name, capability, driver, error=""):
    """The checks of a node whose GPU computed, or could not."""
    figure = Figure(value=1.0, error=error)
    gpu = GPU(index=0, name=name, capability=capability, compute=figure, memory=figure)
    proof = Proof(asked=1, gpus=(gpu,))
    return {c.id: c for c in on_node(recipes.load(recipe), NODE, proof, driver)}


def test_a_gpu_that_the_recipe_cannot_serve_fails_with_the_recipe_that_can():
    found = gpu_checks("cuda13", "Tesla P100-PCIE-16GB", "6.0", "580.95.05")
    assert found["recipe.gpus"].result == "fail"
    assert found["recipe.gpus"].reason == (
        "recipe cuda13 has no code for GPUs of compute capability 6.0; recipe cuda12 has"
    )


@pytest.mark.parametrize(
    ("recipe", "driver", "result"),
    [
        ("cuda13", "580.95.05", "pass"),
        ("cuda13", "575.57.08", "fail"),
        ("cuda12", "535.309.01", "pass"),
        ("cuda12", "470.256.02", "fail"),
        ("cuda12", None, "fail"),
        ("cpu", "580.95.05", "skip"),
    ],
)
def test_a_driver_must_run_the_recipes_cuda(recipe, driver, result):
    assert gpu_checks(recipe, "Tesla T4", "7.5", driver)["recipe.driver"].result == result
