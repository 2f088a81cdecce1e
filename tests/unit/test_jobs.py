"""Every job folder is whole, and its description agrees with its code."""

import ast
import json
from pathlib import Path

import pytest
import yaml

JOBS = Path(__file__).parents[2] / "jobs"
TEMPLATE = JOBS.parent / "templates" / "job"
KEYS = {"schema", "description", "launcher", "ranks", "command", "arguments", "metrics", "sanity"}


@pytest.fixture(
    params=sorted([*JOBS.glob("*/job.yml"), TEMPLATE / "job.yml"]),
    ids=lambda path: path.parent.name,
)
def folder(request):
    return request.param.parent


@pytest.fixture
def job(folder):
    return yaml.safe_load((folder / "job.yml").read_text())


def options(folder):
    """The long options that main.py declares."""
    calls = [
        node
        for node in ast.walk(ast.parse((folder / "main.py").read_text()))
        if isinstance(node, ast.Call)
    ]
    named = [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    ]
    return {call.args[0].value for call in named}


def test_every_folder_is_a_whole_job():
    for path in (path for path in (*JOBS.iterdir(), TEMPLATE) if path.is_dir()):
        assert {"job.yml", "main.py", "README.md"} <= {entry.name for entry in path.iterdir()}


def test_a_description_has_all_its_keys(job):
    assert set(job) - {"container"} == KEYS
    assert job["schema"] == "gpubed/job/1"


def test_every_argument_is_an_option_of_the_program(folder, job):
    wanted = {"--" + name.replace("_", "-") for name in job["arguments"]}
    assert wanted <= options(folder)


def test_sanity_speaks_of_metrics(job):
    for condition in job["sanity"]:
        assert condition["metric"] in job["metrics"]
        assert len({"equals", "at_least", "at_most"} & set(condition)) == 1


def test_the_notebook_is_shipped_without_output_and_runs_the_jobs_own_code():
    cells = json.loads((JOBS / "digits/digits.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    source = "".join("".join(cell["source"]) for cell in code)
    assert "from training import" in source
    assert "def train" not in source
