"""The journal of a slice: other versions' ones are read, a damaged one is told."""

import json

import pytest

from gpubed.backends.virtualwall import journal
from gpubed.backends.virtualwall.config import Config
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from unit.test_virtualwall_documents import BACKEND

CONFIG = Config.model_validate(BACKEND)
SLIVER = {"urn": "s", "client_id": "node-0", "allocation": "a", "operational": "o"}
FORMER = {
    "uuid": "6f0c0000-0000-4000-8000-000000000000",
    "slice_urn": "urn:publicid:IDN+sa.example:p+slice+lab-6f0c0000",
    "testbed": CONFIG.model_dump(mode="json"),
    "request": "abcd",
    "calling": "Provision",
    "left_out": {"node-1": "no machine"},
    "slivers": [SLIVER],
}


@pytest.fixture
def paths(tmp_path):
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


def test_what_another_version_wrote_is_read(paths):
    (paths.state / journal.FILE).write_text(json.dumps({**FORMER, "newer": {"what": 1}}))
    known = journal.load(paths)
    assert (known.request, known.slivers, known.project) == ("abcd", (SLIVER,), "myproj")
    journal.save(paths, known)
    assert journal.load(paths) == known


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uuid": 1}'])
def test_a_damaged_one_is_an_error_that_says_what_helps(paths, text):
    file = paths.state / journal.FILE
    file.write_text(text)
    with pytest.raises(Unreadable) as caught:
        journal.load(paths)
    assert f"mv {file} {file}.damaged" in caught.value.hint
    file.rename(f"{file}.damaged")
    assert journal.load(paths) is None
