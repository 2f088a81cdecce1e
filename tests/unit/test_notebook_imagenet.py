"""The notebook of job imagenet, cell by cell.

STAND-INS: `gpubed-horovodrun` says and writes what the job would, IPython and matplotlib keep
what they are told to show. That the cells run with the real ones is for role jupyterlab's tests.
"""

import json
import os
import subprocess
import sys
import time
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from gpubed.core.paths import assets
from gpubed.jobs import jobfile
from gpubed.recipes import recipe
from gpubed.recipes import recipe as recipes

pytestmark = pytest.mark.process

JOB = assets() / "jobs/imagenet"
CELLS = {
    cell["id"]: "".join(cell["source"])
    for cell in json.loads((JOB / "imagenet.ipynb").read_text())["cells"]
    if cell["cell_type"] == "code"
}
# It trains until somebody has looked: 100 images a second and rank, and each node more costs.
START = """\
#!{python}
import json, pathlib, sys, time
words = sys.argv[1:]
slots = [int(host.split(":")[1]) for host in words[words.index("-H") + 1].split(",")]
out = pathlib.Path(words[words.index("--out") + 1])
(out / "words").write_text(json.dumps(words))
print("[0]<stdout>:progress: 5/20 steps, 12 images/s, data 0.1 ms, compute <2.0 ms", flush=True)
while not (out / "seen").exists():
    time.sleep(0.01)
if {fails}:
    sys.exit("node-1 is on fire")
found = {{"images_per_s": 100 * sum(slots) / len(slots), "step_s": 1.0, "data_s": 0.1}}
found |= {{"compute_s": 0.6, "exposed_communication_s": 0.3}}
(out / "metrics.json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize("recipe", recipe.names())
def test_every_recipe_brings_what_it_draws_with(recipe):
    assert {"matplotlib", "ipython"} <= {entry.name for entry in recipes.load(recipe).locked()}


class Handle:
    """A place on the notebook's page; `look` is called with what is shown there."""

    def __init__(self, look):
        self.shown, self._look = [], look

    def update(self, what):
        self.shown.append(what)
        self._look(what)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A function that runs the cells up to one; on three nodes, of which one has two ranks."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "hostfile").write_text("head slots=0\nn0 slots=1\nn1 slots=1\nn2 slots=2\n")
    (tmp_path / "main.py").touch()
    runs = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUBED_NOTEBOOK_RUNS", str(runs))
    display, pyplot, axes = ModuleType("IPython.display"), MagicMock(), MagicMock()
    axes.plot.side_effect = lambda *_, **__: [MagicMock()]
    pyplot.subplots.return_value = MagicMock(), axes
    display.HTML = display.Markdown = str
    modules = {"IPython": ModuleType("IPython"), "IPython.display": display}
    modules |= {"matplotlib": MagicMock(pyplot=pyplot), "matplotlib.pyplot": pyplot}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    nap = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: nap(0.01))

    def look(what):
        told.look(what)
        if "12 images/s" in str(what):
            (max(runs.iterdir()) / "seen").touch()

    def show(what, display_id):
        assert display_id
        told.handles.append(Handle(look))
        told.handles[-1].update(what)
        return told.handles[-1]

    def told(last, *, fails=False):
        start = tmp_path / "bin/gpubed-horovodrun"
        start.write_text(START.format(python=sys.executable, fails=fails))
        start.chmod(0o755)
        names = list(CELLS)
        for name in names[: names.index(last) + 1]:
            here = CELLS[name].replace("/etc/gpubed/hostfile", str(tmp_path / "hostfile"))
            exec(compile(here, name, "exec"), told.names)
        return told.names

    display.display = show
    told.names, told.handles, told.runs, told.axes = {}, [], runs, axes
    told.look = lambda _: None
    return told


def test_it_measures_one_node_two_nodes_and_all_that_have_ranks(notebook):
    names = notebook("run")
    words = [json.loads((run / "words").read_text()) for run in sorted(notebook.runs.iterdir())]
    assert [given[:2] for given in words] == 2 * [
        ["-H", "n0:1"],
        ["-H", "n0:1,n1:1"],
        ["-H", "n0:1,n1:1,n2:2"],
    ]
    known = {"--" + name.replace("_", "-") for name in jobfile.load("imagenet").arguments}
    for given in words:
        after = given[given.index("--") + 1 :]
        assert after[:2] == ["python", str(notebook.runs.parent / "main.py")]
        assert set(after[2::2]) <= known | {"--out"}
    assert list(names["results"]) == [(b, n) for b in (16, 32) for n in (1, 2, 3)]
    assert names["results"][16, 3]["images_per_s"] == pytest.approx(400 / 3)


def test_a_run_that_fails_says_what_it_said_last(notebook):
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1; see .*node-1 is on fire"):
        notebook("run", fails=True)
    (run,) = notebook.runs.iterdir()
    assert (run / ".heartbeat").read_text() == "end\n"


def test_whoever_interrupts_it_ends_the_ranks(notebook):
    """Ctrl-C reaches the launcher as well; here it does not, which is worse."""

    def interrupt(what):
        if "12 images/s" in str(what):
            raise KeyboardInterrupt

    notebook.look = interrupt
    with pytest.raises(KeyboardInterrupt):
        notebook("run")
    (run,) = notebook.runs.iterdir()
    assert (run / ".heartbeat").read_text() == "end\n"
    alive = subprocess.run(["pgrep", "-f", str(run)], capture_output=True, check=False)
    assert alive.stdout == b""
