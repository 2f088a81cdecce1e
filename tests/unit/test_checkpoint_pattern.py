"""The checkpoints that docs/how-to/write-a-job.md tells a job's author to keep."""

import ast
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpubed.jobs.jobfile import Argument

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-a-job.md"


def section():
    return PAGE.read_text().partition("## Checkpoints")[2].partition("\n## ")[0]


def block(language):
    return re.search(rf"```{language}\n(.*?)```", section(), re.DOTALL)[1]


def test_its_argument_is_one_that_a_run_goes_on_by():
    argument = yaml.safe_load(block("yaml"))["arguments"]["checkpoint"]
    assert Argument.model_validate(argument).resumes


def test_the_newest_whole_one_is_where_a_run_goes_on(tmp_path, monkeypatch):
    """PyTorch and Horovod are not for the controller: STAND-INS write, read and hand on."""
    monkeypatch.setenv("GPUBED_SHARED", str(tmp_path))

    def program():
        names = {
            "os": os,
            "Path": Path,
            "args": SimpleNamespace(checkpoint="mine"),
            "hvd": SimpleNamespace(rank=lambda: 0, broadcast_object=lambda it, root_rank, name: it),
            "torch": SimpleNamespace(
                save=pickle.dump,
                load=lambda path, weights_only: pickle.loads(path.read_bytes()),
            ),
        }
        exec(block("python"), names)
        return SimpleNamespace(**names)

    first = program()
    assert first.state is None
    first.keep(500, {"step": 500})
    first.keep(1000, {"step": 1000})
    (tmp_path / "checkpoints" / "mine" / "draft").write_bytes(b"half of on")
    assert program().state == {"step": 1000}


def programs():
    """What ranks run: the jobs, and the Python that pages show."""
    for path in sorted(ROOT.glob("jobs/**/*.py")):
        yield pytest.param(path.read_text(), id=str(path.relative_to(ROOT)))
    for page in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("jobs/**/*.md")]):
        for number, shown in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
            yield pytest.param(shown, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("text", list(programs()))
def test_what_one_rank_hands_on_has_a_name(text):
    """Horovod names it after its type else: ranks that hold None wait for another name, forever."""
    unnamed = [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", getattr(call.func, "id", "")) == "broadcast_object"
        and "name" not in {keyword.arg for keyword in call.keywords}
    ]
    assert not unnamed
