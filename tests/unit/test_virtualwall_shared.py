"""The testbed's shared folder: a part of it that stays is not forgotten. No testbed here."""

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.virtualwall import journal
from gpubed.core import record
from gpubed.core.paths import Project
from support.bound import kind

UUID = "6f0c0000-0000-4000-8000-000000000000"
PART = f"/proj/p/gpubed-{UUID}"
SPEC = {
    "version": 1,
    "backend": {
        "type": "virtualwall",
        "aggregate": {"url": "https://am.example", "urn": "urn:publicid:IDN+am+authority+cm"},
        "authority": {"slices": "https://sa.example", "members": "https://ma.example"},
        "project": "p",
        "login": "/alice.pem",
        "shared_folder": "/proj/p",
        "hardware": {"node": {"type": "pcgen05"}},
    },
    "nodes": [{"name": "node", "count": 1}],
    "storage": {"shared": {"provider": "volume"}},
}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cluster whose nodes are gone, and whose data was kept."""
    paths = Project(tmp_path).cluster("wall")
    for folder in (paths.spec.parent, paths.state):
        folder.mkdir(parents=True)
    paths.spec.write_text(yaml.safe_dump(SPEC))
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    # STAND-IN for the testbed: nothing of the cluster is there.
    monkeypatch.setattr(kind("virtualwall"), "existing", lambda *_: [])
    record.keep_uuid(paths, UUID)
    journal.note_part(paths, UUID, PART, "/shared")
    return paths


def down(*words):
    return CliRunner().invoke(
        cli.build(), ["down", "wall", "--engine", "embedded", *words], standalone_mode=False
    )


def test_a_specification_with_errors_lets_nothing_be_forgotten(kept):
    """It alone says by now on which testbed the data is."""
    kept.spec.write_text("nodes: none yet")
    done = down("-y")
    assert "resources of wall may exist, but its specification" in done.exception.message
    assert done.exception.hint.startswith("gpubed check wall; or if it has no resources: rm ")
    assert record.uuid(kept) == UUID
