"""Every job folder is whole, and its description agrees with its code."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml

JOBS = Path(__file__).parents[2] / "jobs"
TEMPLATE = JOBS.parent / "templates" / "job"
KEYS = {"schema", "description", "launcher", "ranks", "command", "arguments", "metrics", "sanity"}
SHORT = {"description", "command", "arguments"}  # all that a new job needs


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


def test_a_description_has_all_its_keys(job):
    assert set(job) - {"container", "progress"} in (KEYS, SHORT)
    assert job.get("schema", "gpubed/job/1") == "gpubed/job/1"


def test_every_argument_is_an_option_of_the_program(folder, job):
    wanted = {"--" + name.replace("_", "-") for name in job["arguments"]}
    assert wanted <= options(folder)


@pytest.fixture(params=["digits", "imagenet"])
def notebook(request):
    return json.loads((JOBS / f"{request.param}/{request.param}.ipynb").read_text())


def test_a_notebook_is_whole_and_shipped_without_output(notebook):
    """As format 4.5 has it."""
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "horovod"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        own = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | own
        assert not any(cell.get(key) for key in own)


def test_a_notebook_is_python_that_runs_the_jobs_own_code(notebook):
    code = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    for source in code:
        ast.parse(source)
    source = "".join(code)
    assert '"gpubed-horovodrun"' in source
    assert "main.py" in source
    assert "def train" not in source
