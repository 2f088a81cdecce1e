"""A campaign and the runs below it: whole `jobs.run`, on a head that is a STAND-IN."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import linkrates
from gpubed.campaigns.records import Folder
from gpubed.checks import plain
from gpubed.core.errors import GpubedError, UsageError
from gpubed.jobs import execution, images, leftovers
from gpubed.jobs.runs import record
from gpubed.nodes import rates, selection
from gpubed.nodes.cluster import Cluster
from support import stand_in_head
from support.samples import granted_cluster, sample_allocation, sample_plan

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
    assert len(campaign.folder.ended()) == 1
    assert campaign().return_value == 0
    assert len(campaign.launched) == 4, "a run that had ended well was run again"
    ended = campaign.folder.ended()
    runs = {run.run_id: run for run in campaign.runs()}
    assert {point.run_id for point in ended.values()} == set(runs)
    for point in ended.values():
        run = runs[point.run_id]
        assert (run.set.rpartition(".")[2], run.repetition) == (point.id, point.repetition)
        assert point.metrics == run.metrics
        assert Path(point.run_dir).is_dir()
    assert [record.unsealed(campaign.paths.runs / name) for name in runs] == [[]] * 4


@pytest.mark.parametrize("what", ["failed", "edited", "another job", "another beginning"])
def test_a_run_that_is_none_of_the_campaign_stands_for_no_point(campaign, monkeypatch, what):
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    (lost,) = {run.run_id for run in campaign.runs()} - {
        point.run_id for point in campaign.folder.ended().values()
    }
    folder = campaign.paths.runs / lost
    if what == "edited":
        (folder / "metrics.json").write_text("{}")
    else:
        told = json.loads((folder / "run.json").read_text())
        if what == "failed":
            told["state"] = "failed"
        elif what == "another job":
            told["origin"]["job_sha256"] = "other"
        else:
            told["set"] = "c.2020-01-01T00:00:00.nodes-1"
        (folder / "run.json").write_text(json.dumps(told))
        record.seal(folder)
    assert campaign().return_value == 0
    assert len(campaign.launched) == 5
    assert lost not in {point.run_id for point in campaign.folder.ended().values()}


def test_a_run_on_another_device_stands_for_no_point(campaign, monkeypatch):
    """Whoever was killed before it could keep the point's first repetition goes on elsewhere."""
    campaign.file.write_text(PLAIN.replace("[1, 2]", "[1]"))
    monkeypatch.setitem(stand_in_head.GOOD, "device", "V100")
    killed_once(monkeypatch, Folder, "keep", 1)
    assert campaign().return_value == 130
    monkeypatch.setitem(stand_in_head.GOOD, "device", "GTX 1080")
    assert campaign().return_value == 1
    first, second = (campaign.folder.ended()["nodes-1", repetition] for repetition in (0, 1))
    assert (first.status, first.devices) == ("ok", ["V100"])
    assert second.reason == "it computed on GTX 1080, and the point's other repetitions on V100"


def test_a_point_without_the_number_that_it_is_repeated_for_has_failed(campaign):
    """Also where a run stands for it that ended before."""
    stop = "{metric: gpu_percent, relative_width: 0.1, at_least: 2}"
    campaign.file.write_text(f"{PLAIN}stop: {stop}\n")
    said = campaign()
    assert said.return_value == 1
    reasons = {point.reason for point in campaign.folder.ended().values()}
    assert reasons == {"it gave no gpu_percent, which stop asks for"}
    before = len(campaign.launched)
    assert campaign().return_value == 1
    assert len(campaign.launched) == before, "what failed is repeated only when asked for"
    assert campaign("--again-failed").return_value == 1
    assert len(campaign.launched) == 2 * before


def test_repetitions_of_run_are_numbered(campaign):
    words = ["run", "lab", "mine", "--repeat", "2"]
    CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)
    assert [run.repetition for run in campaign.runs()] == [0, 1]


def test_a_plan_reckons_with_earlier_runs_of_the_job_on_this_cluster(campaign):
    assert "4 are left, time left unknown until one has ended well" in campaign("--plan").stderr
    words = ["run", "lab", "mine", "--set", "epochs=2"]
    CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)
    (run,) = campaign.runs()
    folder = campaign.paths.runs / run.run_id
    record.write(folder, run.model_copy(update={"seconds": 20.0}))
    said = " ".join(campaign("--plan").stderr.split())
    assert "4 are left, 80 s left, 4 of 4 runs guessed from those most like them" in said
    elsewhere = run.origin.model_copy(update={"uuid": "another"})
    record.write(folder, run.model_copy(update={"origin": elsewhere}))
    assert "time left unknown" in campaign("--plan").stderr


def test_a_job_that_is_edited_while_its_campaign_is_at_work_ends_it(campaign, monkeypatch):
    real = execution.run

    def run(*words, **named):
        result = real(*words, **named)
        if len(campaign.launched) == 2:
            program = campaign.job / "training.py"
            program.write_text(program.read_text() + "# faster\n")
        return result

    monkeypatch.setattr(execution, "run", run)
    with pytest.raises(UsageError, match="the job's files") as refused:
        campaign()
    assert "--new" in refused.value.hint
    assert len(campaign.launched) == 2
    assert len(campaign.folder.ended()) == 2, "what ended before the edit does not count"


def test_what_a_link_in_the_jobs_folder_leads_to_is_part_of_the_job(campaign):
    kernel = campaign.root / "kernel.py"
    kernel.write_text("SPEED = 1\n")
    library = campaign.root / "library"
    library.mkdir()
    (library / "layers.py").write_text("WIDTH = 1\n")
    (campaign.job / "kernel.py").symlink_to(kernel)
    (campaign.job / "library").symlink_to(library)
    sums = [record.sha256_of_folder(campaign.job)]
    kernel.write_text("SPEED = 2\n")
    sums.append(record.sha256_of_folder(campaign.job))
    (library / "layers.py").write_text("WIDTH = 2\n")
    sums.append(record.sha256_of_folder(campaign.job))
    assert len(set(sums)) == 3


@pytest.mark.parametrize("target", ["../mine", "../nowhere", "link"])
def test_a_link_that_cannot_be_followed_is_named(campaign, target):
    (campaign.job / "link").symlink_to(target)
    with pytest.raises(UsageError, match="link"):
        record.sha256_of_folder(campaign.job)


def test_a_point_beside_another_run_fails_before_it_is_measured(campaign, monkeypatch):
    still = leftovers.AtWork("x", "2 process(es) on node-1")
    said = "run x is still at work (2 process(es) on node-1): the two share its processors"
    looks = iter([[], [still], [], []])
    monkeypatch.setattr(leftovers, "end", lambda *_: next(looks))
    assert campaign().return_value == 1
    (failed,) = (p for p in campaign.folder.ended().values() if p.status == "failed")
    assert failed.reason == said
    assert len(campaign.launched) == 3
    assert [run.state for run in campaign.runs()].count("failed") == 1


def test_a_run_beside_another_run_is_told_so_and_goes_on(campaign, monkeypatch):
    monkeypatch.setattr(leftovers, "end", lambda *_: [leftovers.AtWork("x", "here")])
    done = CliRunner().invoke(cli.build(), ["run", "lab", "mine"], standalone_mode=False)
    assert done.return_value == 0
    assert "run x is still at work" in done.stderr


def test_an_image_that_was_rebuilt_under_its_name_is_another_measurement(campaign, monkeypatch):
    campaign.file.write_text(IN_A_CONTAINER)
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    header = json.loads((campaign.folder.path / "campaign.json").read_text())
    assert header["made_with"]["image my/image"] == "sha256:one"
    assert {p.image for p in campaign.folder.ended().values()} == {"sha256:one"}
    monkeypatch.setattr(images, "require", lambda *_: "sha256:two")
    with pytest.raises(UsageError, match="image my/image was sha256:one and is sha256:two"):
        campaign()


def test_an_image_that_is_rebuilt_while_a_campaign_is_at_work_ends_it(campaign, monkeypatch):
    campaign.file.write_text(IN_A_CONTAINER)
    monkeypatch.setattr(
        images, "require", lambda *_: "sha256:two" if campaign.launched else "sha256:one"
    )
    with pytest.raises(UsageError, match="image my/image was sha256:one and is sha256:two"):
        campaign()
    assert len(campaign.folder.ended()) == 1


def test_an_image_that_a_run_found_otherwise_than_the_campaign_fails_its_point(
    campaign, monkeypatch
):
    campaign.file.write_text(IN_A_CONTAINER.replace("repeat: 3", "repeat: 1"))
    answers = iter(["sha256:one"] * 3 + ["sha256:two"])
    monkeypatch.setattr(images, "require", lambda *_: next(answers))
    assert campaign().return_value == 1
    (failed,) = campaign.folder.ended().values()
    assert "my/image" in failed.reason
    assert "sha256:two" in failed.reason


def test_a_campaign_whose_dataset_is_made_again_is_another(campaign, monkeypatch):
    asked = []

    def description(_cluster, names):
        asked.append(sorted(names))
        return {"dataset flowers": f"sum {len(asked) > 2}"}

    monkeypatch.setattr("gpubed.campaigns.provenance.datasets", description)
    description_file = campaign.job / "job.yml"
    argument = "arguments:\n  dataset: {type: str, dataset: true, help: images}\n"
    description_file.write_text(description_file.read_text().replace("arguments:\n", argument))
    campaign.file.write_text(PLAIN.replace("epochs: 2", "dataset: flowers"))
    with pytest.raises(UsageError, match="dataset flowers was sum False and is sum True"):
        campaign()
    assert asked[0] == ["flowers"]


def test_records_that_cannot_be_read_keep_no_campaign_from_going_on(campaign, monkeypatch):
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    for folder in campaign.paths.runs.iterdir():
        (folder / "run.json").write_text("")  # as a power cut leaves it
    assert campaign().return_value == 0
    assert len(campaign.launched) == 5


def test_an_error_below_a_run_keeps_no_point_from_naming_it(campaign, monkeypatch):
    def refuse(*_):
        raise GpubedError("node-1 does not answer")

    monkeypatch.setattr(leftovers, "end", refuse)
    assert campaign().return_value == 1
    assert {p.reason for p in campaign.folder.ended().values()} == {"node-1 does not answer"}


def test_a_run_is_kept_with_the_rates_that_its_links_had(campaign, monkeypatch):
    row = {"src": "node-0", "dst": "node-1", "measured_bps": 50e6}
    monkeypatch.setattr(rates.Links, "_shape", lambda *_: None)
    monkeypatch.setattr(linkrates, "measure", lambda *_: [row])
    campaign.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    killed_once(monkeypatch, Folder, "keep", 2)
    assert campaign().return_value == 130
    assert {run.origin.rates_bps["node-0>node-1"] for run in campaign.runs()} == {50e6}
    assert campaign().return_value == 0
    assert len(campaign.launched) == 2
    assert campaign.folder.ended()["rate-50M", 1].links == [row]


def test_links_are_measured_between_the_nodes_of_a_point(tmp_path, monkeypatch):
    asked = []
    plan = sample_plan()
    granted = sample_allocation(plan)
    used = selection.choose(granted, nodes=2)
    monkeypatch.setattr(linkrates, "SSH", lambda node, _: nullcontext(node.name))
    monkeypatch.setattr(
        plain, "in_pairs", lambda context, nodes, rate: asked.append((context, nodes, rate)) or []
    )
    assert linkrates.measure(Cluster(granted_cluster(tmp_path), plan, used)) == []
    ((context, nodes, rate),) = asked
    assert ([node.name for node in nodes], rate) == (["node-0", "node-1"], 200_000_000)
    assert sorted(context.sessions) == ["node-0", "node-1"]
    asked.clear()
    alone = selection.choose(granted, nodes=1)
    assert linkrates.measure(Cluster(granted_cluster(tmp_path, "other"), plan, alone)) == []
    assert asked == []


@pytest.mark.parametrize("damage", ["cut off", "edited"])
def test_a_point_that_is_no_good_any_more_comes_from_its_run(campaign, damage):
    assert campaign().return_value == 0
    ended = campaign.folder.ended()
    path = campaign.folder.path / "points" / "nodes-1.0.json"
    edited = path.read_text().replace('"nodes": 1', '"nodes": 2')
    path.write_text("" if damage == "cut off" else edited)
    assert campaign("--again-failed").return_value == 0
    assert len(campaign.launched) == 4
    found = campaign.folder.ended()
    assert found["nodes-1", 0].metrics == ended["nodes-1", 0].metrics
    assert found["nodes-1", 0].run_id == ended["nodes-1", 0].run_id
    assert len(list((path.parent / "former").iterdir())) == 1
