"""`gpubed report CLUSTER --with OTHER`, as docs/how-to/report.md has it."""

import csv
import json

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.report import analysis, merge, read, summary, tables
from support import measurements
from support.samples import granted_cluster

FACTORS = {"batch_size": [32, 64], "nodes": [1, 2, 3]}
SHAPES = {"batch_size": [32, 64]}
ALL = ["vw1", "vw10", "gl-world", "gl-trials"]
LABELS = ["vw1 (1 Gbit/s)", "vw10 (10 Gbit/s)", "gl-world", "gl-trials"]


def wall(cluster, rate, name="imagenet-scaling", factors=FACTORS, slow=1.0, **more):
    """Return a campaign of a cluster whose links have a rate, and its points."""
    campaign = _campaign(cluster, name, factors, "virtualwall", **more)
    bps = measurements.RATES[rate]
    campaign["links"] = [
        link | {"declared_bps": bps, "measured_bps": 0.946 * bps} for link in campaign["links"]
    ]
    return campaign, list(measurements.measured(campaign, _seed(cluster), slow, rate=rate))


def gpulab(cluster, gpus, **more):
    """Return a campaign on GPULab, each point of which is one job with so many GPUs."""
    more = {"nodes": [], "links": [], **more}
    campaign = _campaign(cluster, "imagenet-gpulab", SHAPES, "gpulab", **more)
    return campaign, list(measurements.measured(campaign, _seed(cluster), nodes=gpus, rate="10G"))


def trials(cluster, **more):
    """Return one on GPULab, each point of which is the mean of several jobs with one GPU each."""
    campaign, points = gpulab(cluster, 1, **more)
    for point in points:  # of texts, lists and switches there is no mean
        kept = (v for v in point["metrics"].items() if isinstance(v[1], int | float))
        point["metrics"] = {name: float(value) for name, value in kept}
    return campaign, points


def every():
    """Return the four."""
    return [
        wall("vw1", "1G"),
        wall("vw10", "10G"),
        gpulab("gl-world", 3),
        trials("gl-trials"),
    ]


def write(root, *measured):
    """Write clusters with their campaigns; the nodes are gone. Return the campaigns' folders."""
    folders = []
    for campaign, points in measured:
        paths = Project(root).cluster(campaign["cluster"])
        if not paths.spec.exists():
            granted_cluster(root, paths.name).allocation.unlink()
        folders.append(measurements.write(paths, campaign, points))
    return folders


@pytest.fixture
def put(tmp_path):
    """A function that writes campaigns, and puts them together as a report reads them."""

    def put(*measured):
        write(tmp_path, *measured)
        return merge.put(
            [
                read.load(Project(tmp_path).cluster(campaign["cluster"]), campaign["name"])
                for campaign, _ in measured
            ]
        )

    return put


@pytest.fixture
def analysed(put):
    """A function that analyses campaigns of several clusters together."""
    return lambda *measured: analysis.analyse(put(*measured))


def _campaign(cluster, name, factors, backend, **more):
    command = f"gpubed bench {cluster} {name}"
    told = {"cluster": cluster, "uuid": f"uuid of {cluster}", "backend": backend}
    return measurements.document(name, factors, **{**told, "command": command, **more})


def _seed(cluster):
    return sum(map(ord, cluster))


WALL, FAST, WORLD, TRIALS = LABELS


def compared(found):
    """Return the comparisons of environments: what with what, where."""
    return {
        (one.value, one.against, *one.group.others("environment").items()): one
        for one in found.comparisons
        if one.factor == "environment"
    }


def throughput(nodes, batch, rate):
    return nodes * batch * measurements.efficiency(nodes, batch, rate)


def test_each_environment_is_compared_with_the_first_where_all_else_is_equal(analysed):
    found = compared(analysed(*every()))
    batches, nodes = (32, 64), (1, 2, 3)
    assert set(found) == {
        *((FAST, WALL, ("batch_size", b), ("nodes", n)) for b in batches for n in nodes),
        *((WORLD, WALL, ("batch_size", b), ("ranks", 3)) for b in batches),
        *((TRIALS, WALL, ("batch_size", b), ("ranks", 1)) for b in batches),
    }
    for (value, _, (_, batch), (_, size)), one in found.items():
        rate = "10G" if value != WALL else "1G"
        true = throughput(size, batch, rate) / throughput(size, batch, "1G")
        assert one.ratio.value == pytest.approx(true, rel=0.03)
        assert one.ratio.low < one.ratio.value < one.ratio.high


def test_what_differs_by_more_than_chance_is_told_in_words(analysed):
    text = " ".join(summary.told(analysed(*every())))
    assert "clusters vw1 (virtualwall, 3 nodes), vw10 (virtualwall, 3 nodes), gl-world (" in text
    assert f"{FAST} over {WALL}: 1." in text
    assert "times the throughput with batch 32, 3 nodes" in text


def test_every_point_is_in_the_table_also_without_nodes(analysed):
    found = analysed(*every())
    assert len(found.groups) == len({group.id for group in found.groups}) == 16
    results = tables.made(found)[0]
    rows = [dict(zip(results.columns, row, strict=True)) for row in results.rows]
    assert list(dict.fromkeys(row["environment"] for row in rows)) == LABELS
    told = {
        tuple(row[name] for name in ("environment", "batch size", "nodes", "ranks")) for row in rows
    }
    assert {(WALL, "32", "3", ""), (WORLD, "32", "", "3"), (TRIALS, "64", "", "1")} <= told


def without(metric, measured):
    for point in measured[1]:
        point["metrics"].pop(metric, None)
    return measured


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (wall("vw10", "1G", job="digits"), "of several jobs .*vw1 .*: imagenet; vw10 .*: digits"),
        (wall("vw10", "1G", simulated=True), "simulated and real GPUs cannot be compared"),
        (
            without("images_per_s", wall("vw10", "1G")),
            r"no rate or other figure in common \(vw1 .*: images_per_s; vw10 .*: step_s",
        ),
        (wall("vw1", "1G"), "campaign imagenet-scaling of cluster vw1 is there twice"),
    ],
)
def test_what_does_not_belong_together_is_refused(put, other, why):
    with pytest.raises(UsageError, match=why):
        put(wall("vw1", "1G"), other)


OTHERS = ["--with", "vw10", "--with", "gl-world", "--with", "gl-trials"]


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in which the four environments were measured."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    write(tmp_path, *every())
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
    assert list(told) == LABELS
    for cluster, (label, campaign) in zip(ALL, told.items(), strict=True):
        [path] = Project(folder.parents[4]).cluster(cluster).campaigns.glob("*/campaign.json")
        assert campaign == json.loads(path.read_text())
        groups = [g for g in found["groups"] if g["settings"]["environment"] == label]
        assert len(groups) == (6 if label in (WALL, FAST) else 2)
    with (folder / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({(row["id"], row["repetition"]) for row in rows}) == 48
    assert {row["environment"] for row in rows} == set(LABELS)


def test_the_campaign_of_the_same_name_is_meant_else_the_newest(project, folder):
    new = {"started": "2026-11-24T10:00:00Z"}
    write(project, wall("vw10", "10G", "newer", **new))
    write(project, wall("gl-world", "10G", "newer", **new))

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
