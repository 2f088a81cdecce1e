"""The checkpoints that docs/how-to/write-a-job.md tells a job's author to keep."""

import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import yaml

from gpubed.jobs.jobfile import Argument

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-job.md"


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
            "hvd": SimpleNamespace(rank=lambda: 0, broadcast_object=lambda it, root_rank: it),
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
