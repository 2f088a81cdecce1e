"""A campaign and the runs below it: whole `jobs.run`, on a head that is a STAND-IN."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns.records import Folder
from gpubed.core.errors import UsageError
from gpubed.jobs import images
from gpubed.jobs.runs import record
from support import stand_in_head
from support.samples import granted_cluster

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PLAIN = """schema: gpubed/campaign-file/1
job: mine
factors: {nodes: [1, 2]}
settings: {epochs: 2}
repeat: 2
"""
IN_A_CONTAINER = """schema: gpubed/campaign-file/1
job: mine
factors: {environment: [docker]}
environments: {docker: {container: my/image}}
repeat: 3
"""


class Campaign:
    """A project with a job and a campaign of its own, on a cluster that is up."""

    def __init__(self, root, launched):
        self.root, self.launched = root, launched
        self.paths = granted_cluster(root)
        self.folder = Folder(self.paths.campaigns / "c")
        self.job = root / "jobs" / "mine"
        shutil.copytree(ROOT / "jobs" / "digits", self.job)
        self.file = root / "c.yml"
        self.file.write_text(PLAIN)

    def __call__(self, *words):
        return CliRunner().invoke(
            cli.build(),
            ["bench", "lab", str(self.file), *words],
            standalone_mode=False,
            catch_exceptions=False,
        )

    def ended(self):
        records, faults = self.folder.ended(self.folder.begun())
        assert not faults
        return records

    def runs(self):
        return list(record.every(self.paths)[0].values())


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return Campaign(tmp_path, stand_in_head.install(monkeypatch.setattr))


def killed_once(monkeypatch, module, name, call):
    """Let a function be the last thing that a process does, at one of its calls."""
    real, left = getattr(module, name), [call]

    def die(*words, **named):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*words, **named)

    monkeypatch.setattr(module, name, die)


@pytest.mark.parametrize("place", ["seal", "keep"])
def test_a_run_that_ended_well_is_not_run_again_for_want_of_its_point(campaign, monkeypatch, place):
    killed_once(monkeypatch, *((record, "seal") if place == "seal" else (Folder, "keep")), 2)
    assert campaign().return_value == 130
    assert len(campaign.launched) == 2
    assert len(campaign.ended()) == 1
    assert campaign().return_value == 0
    assert len(campaign.launched) == 4, "a run that had ended well was run again"
    ended = campaign.ended()
    runs = {run.run_id: run for run in campaign.runs()}
    assert {point.run_id for point in ended.values()} == set(runs)
    for point in ended.values():
        run = runs[point.run_id]
        assert (run.set.rpartition(".")[2], run.repetition) == (point.id, point.repetition)
        assert point.metrics == run.metrics
        assert Path(point.run_dir).is_dir()
    assert [record.unsealed(campaign.paths.runs / name) for name in runs] == [[]] * 4


@pytest.mark.parametrize("what", ["failed", "edited", "another job"])
def test_a_run_that_is_none_of_the_campaign_stands_for_no_point(campaign, monkeypatch, what):
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    (lost,) = {run.run_id for run in campaign.runs()} - {
        point.run_id for point in campaign.ended().values()
    }
    folder = campaign.paths.runs / lost
    if what == "edited":
        (folder / "metrics.json").write_text("{}")
    else:
        told = json.loads((folder / "run.json").read_text())
        if what == "failed":
            told["state"] = "failed"
        else:
            told["origin"]["job_sha256"] = "other"
        (folder / "run.json").write_text(json.dumps(told))
        record.seal(folder)
    assert campaign().return_value == 0
    assert len(campaign.launched) == 5
    assert lost not in {point.run_id for point in campaign.ended().values()}


def test_an_image_that_was_rebuilt_under_its_name_is_another_measurement(campaign, monkeypatch):
    campaign.file.write_text(IN_A_CONTAINER)
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    header = json.loads((campaign.folder.path / "campaign.json").read_text())
    assert header["made_with"]["image my/image"] == "sha256:one"
    assert {p.image for p in campaign.ended().values()} == {"sha256:one"}
    monkeypatch.setattr(images, "require", lambda *_: "sha256:two")
    with pytest.raises(UsageError, match="image my/image was sha256:one and is sha256:two"):
        campaign()


@pytest.mark.parametrize("damage", ["cut off", "edited"])
def test_a_point_that_is_no_good_any_more_comes_from_its_run(campaign, damage):
    assert campaign().return_value == 0
    ended = campaign.ended()
    path = campaign.folder.path / "points" / "nodes-1.0.json"
    edited = path.read_text().replace('"nodes": 1', '"nodes": 2')
    path.write_text("" if damage == "cut off" else edited)
    assert campaign("--again-failed").return_value == 0
    assert len(campaign.launched) == 4
    found = campaign.ended()
    assert found["nodes-1", 0].metrics == ended["nodes-1", 0].metrics
    assert found["nodes-1", 0].run_id == ended["nodes-1", 0].run_id
    assert len(list((path.parent / "former").iterdir())) == 1
