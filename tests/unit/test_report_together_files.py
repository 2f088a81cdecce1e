"""`gpubed report CLUSTER --with OTHER`, as docs/how-to/report.md has it: which, what and where."""

import csv
import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from support import environments
from support.environments import wall
from support.samples import granted_cluster

WALL, FAST, WORLD, TRIALS = environments.LABELS
OTHERS = ["--with", "vw10", "--with", "gl-world", "--with", "gl-trials"]


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in which the four environments were measured."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    environments.write(tmp_path, *environments.every())
    return tmp_path


@pytest.fixture
def folder(project):
    """Where the report is, once it was asked for."""
    return Project(project).cluster("vw1").campaigns / "imagenet-scaling" / "report-with-others"


def test_four_environments_are_one_report(folder):
    done = call("report", "vw1", "imagenet-scaling", *OTHERS)
    assert done.return_value == 0
    assert f"report: {folder / 'report.html'}" in done.stdout
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert figures == {
        "throughput",
        "efficiency",
        "steps",
        "ratio-0",
        "stragglers",
        "links-1",
        "links-2",
    }
    assert not folder.with_name("report").exists()
    picture = (folder / "figures" / "throughput.svg").read_text()
    assert all(f"{label}, batch {size}" in picture for label in (WALL, FAST) for size in (32, 64))


def test_programs_get_each_campaign_and_which_points_are_of_it(folder):
    printed = json.loads(call("report", "vw1", *OTHERS, "--json").stdout)
    found = json.loads((folder / "report.json").read_text())
    assert found.items() <= printed.items()
    told = {one["settings"]["environment"]: one["campaign"] for one in found["environments"]}
    assert list(told) == environments.LABELS
    for cluster, (label, campaign) in zip(environments.ALL, told.items(), strict=True):
        [path] = Project(folder.parents[4]).cluster(cluster).campaigns.glob("*/campaign.json")
        assert campaign == json.loads(path.read_text())
        groups = [g for g in found["groups"] if g["settings"]["environment"] == label]
        assert len(groups) == (6 if label in (WALL, FAST) else 2)
    with (folder / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({(row["id"], row["repetition"]) for row in rows}) == 48
    assert {row["environment"] for row in rows} == set(environments.LABELS)


def test_the_campaign_of_the_same_name_is_meant_else_the_newest(project, folder):
    new = {"started": "2026-11-24T10:00:00Z"}
    environments.write(project, wall("vw10", "10G", "newer", **new))
    environments.write(project, wall("gl-world", "10G", "newer", **new))

    def named(*words):
        told = json.loads(call("report", "vw1", *words, "--json").stdout)["environments"]
        return [one["campaign"]["name"] for one in told]

    assert named("--with", "vw10", "--with", "gl-world") == [
        "imagenet-scaling",
        "imagenet-scaling",
        "newer",
    ]
    assert named("--with", "vw10/newer") == ["imagenet-scaling", "newer"]
    assert named("--with", "vw10/campaigns/newer.yml") == ["imagenet-scaling", "newer"]


def test_what_is_not_there_is_refused(project):
    with pytest.raises(UsageError, match="there is no cluster 'vw11'") as refused:
        call("report", "vw1", "--with", "vw11")
    assert refused.value.hint.startswith("did you mean 'vw1"), "nobody wants a new cluster here"
    with pytest.raises(UsageError, match="there is no campaign 'newer'"):
        call("report", "vw1", "--with", "vw10/newer")
    granted_cluster(project, "new")
    with pytest.raises(UsageError, match="no campaign was run on new yet"):
        call("report", "vw1", "--with", "new")
