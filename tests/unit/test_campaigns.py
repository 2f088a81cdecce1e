"""Campaign files and the points that they make."""

from pathlib import Path

import pytest

from gpubed.campaigns import file, matrix
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project
from gpubed.jobs import jobfile
from support.samples import sample_allocation, sample_plan

HEAD = "schema: gpubed/campaign-file/1\njob: digits\n"
PLAIN = HEAD + "factors:\n  nodes: [1, 2, 3]\n  batch: [16, 32]\n"


@pytest.fixture
def read(tmp_path):
    """A function from the text of a campaign to it."""

    def load(text, name="mine"):
        path = tmp_path / f"{name}.yml"
        path.write_text(text)
        return file.load(str(path), Project(tmp_path))

    return load


@pytest.fixture
def points(read):
    """A function from the text of a campaign to its points."""

    def expand(text):
        source = read(text)
        return matrix.expand(source, jobfile.load(source.campaign.job))

    return expand


def test_every_combination_is_a_point_with_a_name_of_its_settings(points):
    found = points(PLAIN)
    assert [point.id for point in found] == [
        f"nodes-{nodes}.batch-{batch}" for nodes in (1, 2, 3) for batch in (16, 32)
    ]
    assert (found[0].nodes, found[0].arguments) == (1, {"batch": "16"})


def test_what_is_excluded_is_no_point(points):
    text = PLAIN.replace("batch: [16, 32]", "rate: [100M, 200 Mbit/s]")
    found = points(text + "exclude:\n  - {nodes: 1, rate: 200M}\n  - {nodes: 3}\n")
    assert [point.id for point in found] == [
        "nodes-1.rate-100M",
        "nodes-2.rate-100M",
        "nodes-2.rate-200M",
    ]
    assert found[2].rate_bps == 200_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAIN + "  bach: [1]\n", r"mine.yml:6: factors.bach: job digits has no argument 'bach'"),
        (PLAIN + "  epochs: [2, many]\n", r"mine.yml:6: factors.epochs.1: 'many' is not a whole"),
        (PLAIN.replace("[1, 2, 3]", "[1, 0]"), r"mine.yml:4: factors.nodes.1: 0 is not a number"),
        (PLAIN.replace("[1, 2, 3]", "[true]"), "True is not a number of nodes"),
        (PLAIN.replace("[1, 2, 3]", "[1, 1]"), "a value is there twice"),
        (
            PLAIN.replace("digits", "imagenet").replace("batch: [16, 32]", "checkpoint: [x]"),
            "points are not independent",
        ),
        (PLAIN + "settings: {epoch: 1}\n", r"mine.yml:6: settings.epoch: .*no argument"),
        (PLAIN + "exclude: [{node: 1}]\n", r"mine.yml:6: exclude.0.node: it is no factor"),
        (PLAIN + "exclude: [{nodes: 9}]\n", "9 is none of its values"),
        (PLAIN + "exclude: [{batch: 16}, {batch: 32}]\n", "no point is left"),
        (
            HEAD + "factors: {environment: [a]}\nenvironments: {a: {launcher: slum}}\n",
            r"mine.yml:4: environments.a.launcher: there is no launcher 'slum'",
        ),
        (PLAIN + "repeat: 3\nstop: {metric: speed, relative_width: 0.1}\n", "reports no 'speed'"),
        (
            "schema: gpubed/campaign-file/1\njob: allreduce\nfactors: {nodes: [2]}\n"
            "repeat: 3\nstop: {metric: links, relative_width: 0.1}\n",
            "'links' is no number",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(points, text, said):
    with pytest.raises(UsageError, match=said):
        points(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "factors: is missing"),
        (HEAD + "factors: {}\n", "at least 1"),
        (HEAD + "factors: {nodes: 3}\n", "must be a list"),
        (HEAD + "factors: {rate: [fast]}\n", "must look like 200 Mbit/s"),
        (HEAD + "factors: {nodes: [1], ranks: [1]}\n", "exclude each other"),
        (PLAIN + "settings: {batch: 8}\n", "batch is a factor already"),
        (PLAIN + "settings: {rate: 8M}\n", "give it a list of one value"),
        (PLAIN + "stop: {metric: loss, relative_width: 0.1}\n", r"more than repeat \(1\)"),
        (PLAIN + "environments: {docker: {container: x}}\n", "no value of the factor environment"),
        (PLAIN + "settings: {learning_rate: .inf}\n", "line 6: settings.learning_rate: must be a"),
        (PLAIN + "settings: {learning_rate: [1]}\n", "must be a number, a word"),
        (PLAIN + "repeat: 0\n", "at least 1"),
        (PLAIN + "again: 3\n", "unknown key"),
        (
            PLAIN + "repaet: 3\nsede: 1\n",
            r"2 errors:\n  line 6: repaet.*'repeat'.+\n  line 7: sede",
        ),
        ("schema: gpubed/campaign-file/2\n", "another version"),
        ("schema: [\n", "line"),
    ],
)
def test_a_file_of_another_shape_is_refused_as_usage(read, text, said):
    with pytest.raises(GpubedError, match=said) as refused:
        read(text)
    assert refused.value.exit_code == 2


def test_the_campaigns_that_ship_can_be_read(tmp_path):
    folder = Path(__file__).parents[2] / "campaigns"
    found = {path.stem: file.load(str(path), Project(tmp_path)) for path in folder.glob("*.yml")}
    assert {"smoke", "imagenet-scaling"} <= set(found)
    listed = (folder / "README.md").read_text()
    assert all(f"| `{name}` |" in listed for name in found)
    smoke = found["smoke"].campaign
    assert (smoke.repeat, smoke.factors["nodes"], smoke.factors["batch_size"]) == (
        1,
        (1, 2),
        (32, 64),
    )
    scaling = found["imagenet-scaling"].campaign
    assert (scaling.repeat, scaling.factors["nodes"]) == (3, tuple(range(1, 11)))
    assert scaling.factors["batch_size"] == (32, 64, 96)
    # On GPULab it is the same without nodes: one report has both.
    shapes = found["imagenet-gpulab"].campaign
    assert {**shapes.factors, "nodes": scaling.factors["nodes"]} == scaling.factors
    assert (shapes.settings, shapes.repeat) == (scaling.settings, scaling.repeat)


def test_a_rate_needs_nodes_that_shape_their_links(read):
    granted = sample_allocation(sample_plan())
    source = read(HEAD + "factors: {rate: [100M, 200M]}\n")
    matrix.require_room(source, granted, granted)
    hosts = granted.model_copy(update={"backend": "static"})
    with pytest.raises(UsageError, match="static holds its links to the declared 200M"):
        matrix.require_room(source, hosts, hosts)
    matrix.require_room(read(HEAD + "factors: {rate: [200M]}\n"), hosts, hosts)
    bare = granted.model_copy(update={"experiment": None})
    with pytest.raises(UsageError, match="no experiment network"):
        matrix.require_room(source, bare, bare)
