"""The checkpoints that docs/how-to/write-a-job.md tells a job's author to keep."""

import pickle
import re
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-a-job.md"


def section():
    return PAGE.read_text().partition("## Checkpoints")[2].partition("\n## ")[0]


def block(language):
    return re.search(rf"```{language}\n(.*?)```", section(), re.DOTALL)[1]


def save(state, file):
    """As torch does: a ZIP archive, with a checksum of each part."""
    with ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(state))
        archive.writestr("data/0", bytes(4096))


class Data(pickle.Unpickler):
    """As torch's, which knows numbers and texts, and nothing that could be executed."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError("Weights only load failed")


def load(path, weights_only):
    """As torch does: it looks at no checksum of a tensor."""
    assert weights_only
    return Data(BytesIO(ZipFile(path).read("data.pkl"))).load()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """PyTorch and Horovod are not for the controller: STAND-INS write, read and hand on."""
    monkeypatch.setenv("GPUBED_SHARED", str(tmp_path))

    def start():
        names = {
            "args": SimpleNamespace(checkpoint="mine"),
            "hvd": SimpleNamespace(rank=lambda: 0, broadcast_object=lambda it, root_rank, name: it),
            "torch": SimpleNamespace(save=save, load=load),
        }
        exec(block("python"), names)
        return SimpleNamespace(**names)

    return start


def test_the_newest_whole_one_is_where_a_run_goes_on(program, tmp_path):
    first = program()
    assert first.state is None
    first.keep(500, {"step": 500})
    first.keep(1000, {"step": 1000})
    (tmp_path / "checkpoints" / "mine" / "draft").write_bytes(b"half of on")
    assert program().state == {"step": 1000}


def of_its_directory(content):
    """As if a part had been compressed in a way that nobody knows (APPNOTE.TXT 4.3.12)."""
    at = content.index(b"PK\1\2") + 10
    return content[:at] + b"\xff\xff" + content[at + 2 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content.replace(bytes(64), b"x" * 64, 1),
        of_its_directory,
    ],
    ids=["cut off", "empty", "other bytes", "other bytes of the archive's directory"],
)
def test_a_damaged_one_is_set_aside_and_the_one_before_is_taken(program, tmp_path, capsys, damage):
    for step in (100, 200, 300):
        program().keep(step, {"step": step})
    last = tmp_path / "checkpoints" / "mine" / "step-000000300.pt"
    last.write_bytes(damage(last.read_bytes()))
    assert program().state == {"step": 200}
    assert capsys.readouterr().out == f"{last} is damaged: the one before is taken\n"
    program().keep(250, {"step": 250})
    assert program().state == {"step": 250}


def test_one_that_holds_a_program_is_not_executed_and_the_one_before_is_taken(program, capsys):
    program().keep(100, {"step": 100})
    program().keep(200, {"step": print})
    assert program().state == {"step": 100}
    assert "step-000000200.pt is damaged" in capsys.readouterr().out
