"""The journal of a slice: what a newer version added is passed over, what is damaged is told.

No testbed is here; what answers for it is a STAND-IN.
"""

import json
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import census, connection, journal, limits
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.journal import Journal, Way
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from gpubed.testbeds import registry

UUID = "6f0c0000-0000-4000-8000-000000000000"
SLICE = "urn:publicid:IDN+sa.example:p+slice+lab-6f0c0000"
CONFIG = Config.model_validate(
    {
        "type": "virtualwall",
        "aggregate": {"url": "https://am.example", "urn": "urn:publicid:IDN+am+authority+cm"},
        "authority": {"slices": "https://sa.example/2", "members": "https://ma.example/2"},
        "project": "p",
        "login": "/alice.pem",
        "ca": "/ca.pem",
    }
)


@pytest.fixture
def paths(tmp_path):
    made = Project(tmp_path).cluster("lab")
    made.state.mkdir(parents=True)
    return made


def known():
    sliver = {"urn": "s", "client_id": "node-0", "allocation": "a", "operational": "o"}
    return Journal.model_validate(
        {
            "uuid": UUID,
            "slice_urn": SLICE,
            "testbed": Way.of(CONFIG),
            "request": "abcd",
            "calling": "Provision",
            "left_out": {"node-1": "no machine"},
            "slivers": [sliver],
        }
    )


def test_what_a_newer_version_added_is_passed_over(paths):
    journal.save(paths, known())
    file = paths.state / journal.FILE
    newer = json.loads(file.read_text())
    for place in (newer, newer["testbed"], newer["testbed"]["aggregate"], newer["slivers"][0]):
        place["newer"] = {"what": 1}
    newer["testbed"]["authority"]["newer"] = "x"
    file.write_text(json.dumps(newer))
    assert journal.load(paths) == known()


def test_the_guard_of_a_project_outlives_a_newer_version(paths):
    journal.save(paths, known())
    file = paths.state / journal.FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "newer": 1}))
    plan = SimpleNamespace(
        cluster="lab", spec=SimpleNamespace(backend=CONFIG.model_copy(update={"project": "q"}))
    )
    [finding] = limits.refusals(plan, paths)
    assert "one of project p until it expires" in finding.message


def test_what_former_versions_wrote_is_read(paths):
    """They kept all options of the testbed."""
    written = known().model_dump(mode="json") | {"testbed": CONFIG.model_dump(mode="json")}
    (paths.state / journal.FILE).write_text(json.dumps(written))
    assert journal.load(paths) == known()


def test_former_versions_read_what_this_one_writes():
    """They take `testbed` for options of a specification."""
    assert Config.model_validate(Way.of(CONFIG).model_dump()) == CONFIG == Way.of(CONFIG).config()


def test_it_leads_to_the_testbed_where_no_specification_was_kept(paths):
    journal.save(paths, known())
    assert connection.config_of(registry.reach("virtualwall", paths), paths) == CONFIG


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uuid": 1}'])
def test_a_damaged_one_is_an_error_that_says_what_helps(paths, text):
    file = paths.state / journal.FILE
    file.write_text(text)
    with pytest.raises(Unreadable) as caught:
        journal.load(paths)
    assert f"mv {file} {file}.damaged" in caught.value.hint
    file.rename(f"{file}.damaged")
    assert journal.load(paths) is None


@pytest.mark.parametrize("damaged", [True, False])
def test_who_only_looks_finds_the_slice_by_its_labels_then(paths, monkeypatch, damaged):
    """Whatever its authority calls it."""
    if damaged:
        (paths.state / journal.FILE).write_text("{")
    called = "urn:publicid:IDN+elsewhere+slice+lab-6f0c0000"
    labelled = SimpleNamespace(
        urn=called, description=f"gpubed.cluster={UUID} gpubed.name=lab", is_closed=False
    )
    there = SimpleNamespace(
        slice_urn=lambda name: f"urn:publicid:IDN+sa.example:p+slice+{name}",
        authority=SimpleNamespace(find=lambda _: None, of_project=lambda _: [labelled]),
        project="p",
    )
    monkeypatch.setattr(census, "connect", lambda _: there)
    notes = []
    monkeypatch.setattr(census.progress, "emit", lambda _, message: notes.append(message))
    assert census.slice_of(paths, CONFIG, UUID) == (there, called)
    assert bool(notes) is damaged
