"""What a layer of packages depends on, and what is said where it cannot be had."""

import importlib.util

import pytest

from gpubed.core.paths import assets
from gpubed.jobs.jobfile import Job

CONFLICT = """Using Python 3.11.2 environment at: /shared/env/cpu-0123456789ab
error: No solution found when resolving dependencies
  cause: Because you require numpy==1.26 and numpy==2.2.0, your requirements are unsatisfiable.
"""
REFUSED = """error: Request failed after 3 retries in 7.1s
  cause: Failed to fetch: https://index.example/simple/einops/
"""


@pytest.fixture(scope="module")
def program():
    path = assets() / "roles/python_env/files/make_layer.py"
    spec = importlib.util.spec_from_file_location("make_layer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def digest(program, tmp_path):
    """A function that writes files of a project, and returns the checksum of what it wants."""

    def of(packages=(), base="cpu-0123456789ab", **files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        return program.Wanted(tmp_path, [*packages], base).digest

    return of


def test_one_layer_serves_all_that_want_the_same(digest):
    first = digest(requirements_txt="einops\n", train_py="1")
    assert digest(train_py="2") == first
    assert digest(requirements_txt="# tensors\neinops\n\n") == first
    assert digest(requirements_txt="einops==0.8\n") != first


@pytest.mark.parametrize(
    "change",
    [
        {"packages": ["timm"]},
        {"base": "cpu-ba9876543210"},
        {"more_txt": "scipy\n"},
        {"pyproject_toml": "[project]\n"},
        {"wheels__toy-1-py3-none-any_whl": ""},
    ],
    ids=["packages", "environment", "file named", "own project", "own wheel"],
)
def test_another_layer_where_something_else_is_wanted(digest, change):
    listed = "-r more.txt\n-e .\n--find-links wheels\n"
    first = digest(requirements_txt=listed, more_txt="scipy<2\n", wheels__note_txt="")
    assert digest(**change) != first


@pytest.mark.parametrize(
    ("said", "why", "hint"),
    [
        (CONFLICT, "you require numpy==1.26 and numpy==2.2.0", "torch and numpy, keep"),
        (REFUSED, "Failed to fetch", "--find-links wheels"),
        ("error: Couldn't parse requirement in `requirements.txt`\n", "Couldn't parse", "correct"),
    ],
)
def test_what_cannot_be_had_is_said_with_a_way_out(program, said, why, hint):
    told, way = program.explained(said).args
    assert why in told
    assert hint in way
    assert "Using Python" not in told


def test_a_job_names_packages_as_pip_does():
    job = Job(command=("true",), python={"packages": ["einops", "timm==1.0.9"]})
    assert job.python.packages == ("einops", "timm==1.0.9")
    with pytest.raises(ValueError, match="is no requirement"):
        Job(command=("true",), python={"packages": ["timm=1"]})
