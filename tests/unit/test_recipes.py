"""Every recipe is whole, and its lock is what it says it is."""

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from gpubed.checks.proof import GPU, Figure, Proof
from gpubed.checks.software import drift, on_node
from gpubed.cluster import recipe_check
from gpubed.configuration import roles
from gpubed.recipes import recipe as recipes
from gpubed.recipes.fatbin import Architectures
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


def test_there_are_recipes_with_and_without_gpus():
    assert {"cpu", "cuda12", "cuda13"} <= set(NAMES)


def test_a_recipe_folder_holds_its_files(folder, loaded):
    measured = {"architectures.json"} if loaded.gpus.architectures else set()
    assert {path.name for path in folder.iterdir()} == FILES | measured


def test_a_recipe_is_named_after_its_folder(folder, recipe):
    assert recipe["schema"] == "gpubed/recipe/1"
    assert recipe["name"] == folder.name


def test_the_checksum_of_the_lock_is_right(lock, recipe):
    assert hashlib.sha256(lock.encode()).hexdigest() == recipe["lock"]["sha256"]


def test_every_entry_of_a_lock_has_hashes(loaded):
    entries = loaded.locked()
    assert len(entries) > 50
    assert [str(entry) for entry in entries if not entry.hashes] == []


def test_an_entry_without_an_exact_version_is_refused():
    with pytest.raises(ValueError, match="numpy>=2"):
        list(recipes.parse_lock("torch==2.7.1 \\\n --hash=sha256:00\nnumpy>=2\n"))


def test_a_lock_names_no_place(lock):
    assert not re.search(r"://|--(extra-)?index|--find-links|(^|\s)/\w", lock)


def test_a_lock_covers_what_was_wanted(loaded):
    found = recipe_check._lock_has_what_is_wanted(loaded)
    assert (found.result, found.value) == ("pass", len(loaded.wanted()))
    assert found.value > 10


def test_torch_has_the_version_of_the_recipe(loaded):
    assert {e.version for e in loaded.locked() if e.name == "torch"} == {loaded.torch}


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


def test_horovod_has_a_controller_and_a_pinned_source(recipe):
    horovod = recipe["horovod"]
    assert horovod["mpi"] or horovod["gloo"]
    assert re.fullmatch(r"[0-9a-f]{64}", horovod["sha256"])


def test_every_package_has_code_for_the_gpus_of_the_recipe(loaded):
    """`gpubed recipe measure` read the record from the packages themselves."""
    record = loaded.measured()
    assert record.keys() == {str(entry) for entry in recipe_check.with_gpu_code(loaded)}
    assert recipes.unserved(loaded, record) == []


def test_a_package_without_code_for_a_gpu_is_named():
    cuda12 = recipes.load("cuda12")
    record = cuda12.measured()
    record["torch==2.7.1"] = {"libtorch_cuda.so": Architectures(cubin=("7.0", "8.0", "9.0"))}
    assert recipes.unserved(cuda12, record) == [
        "torch==2.7.1 has no code for compute capability 6.0"
    ]


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


def test_a_node_made_from_the_recipe_does_not_differ(loaded, installed):
    spelled = {**installed, "PyYAML": installed["pyyaml"], "torch": installed["torch"] + "+cu132"}
    del spelled["pyyaml"]
    assert drift(loaded, spelled, MARKERS) == []


def test_another_version_a_missing_and_a_strange_package_are_drift(loaded, installed):
    changed = {**installed, "numpy": "1.26.4", "leftpad": "1.0"}
    del changed["cmake"]
    cmake, numpy = installed["cmake"], installed["numpy"]
    assert drift(loaded, changed, MARKERS) == [
        f"cmake is missing, the recipe has {cmake}",
        "leftpad is 1.0, the recipe has none",
        f"numpy is 1.26.4, the recipe has {numpy}",
    ]


def test_a_cuda_release_reaches_the_roles_as_text():
    """13.10 is not 13.1."""
    given = roles.variables(sample_plan(recipe="cuda13"))
    assert given["cuda_version"] == given["horovod_cuda"] == recipes.load("cuda13").cuda
    without = roles.variables(sample_plan(recipe="cpu"))
    assert without["cuda_version"] == without["horovod_cuda"] == ""


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


def test_names_and_numbers_of_a_gpu_that_does_not_compute_prove_nothing():
    found = gpu_checks("cuda13", "Tesla T4", "7.5", "580.95.05", error="CUDA error")
    assert {check.result for check in found.values()} == {"fail"}
    assert "see gpu.compute" in found["recipe.driver"].reason


def test_what_was_asked_for_and_never_locked_is_named(tmp_path, monkeypatch):
    loaded = recipes.load("cpu")
    wanted = (loaded.folder / "requirements.in").read_text()
    (tmp_path / "requirements.in").write_text(f"{wanted}\neinops\nNumPy<1  # too old\n")
    lock = loaded.lock_path
    monkeypatch.setattr(recipes.Recipe, "folder", tmp_path)
    monkeypatch.setattr(recipes.Recipe, "lock_path", lock)
    found = recipe_check._lock_has_what_is_wanted(loaded)
    assert found.result == "fail"
    assert found.reason.startswith("not in the lock: einops, NumPy<1; ")
